// Talks to the server. Drafts come as server-sent events; leaving a stream cancels its work.
import { $ } from "./dom.js";

const KEY = "tta.token";

async function unlock() {
  const dialog = $("locked");
  $("token").value = "";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  sessionStorage.setItem(KEY, $("token").value);
}

export const token = () => sessionStorage.getItem(KEY);

async function ask(path, settings = {}) {
  for (;;) {
    const headers = { ...settings.headers };
    if (token()) headers.Authorization = `Bearer ${token()}`;
    const answer = await fetch(path, { ...settings, headers });
    if (answer.status === 401) { await unlock(); continue; }
    if (answer.ok) return answer;
    let text = `the server answered ${answer.status}`;
    try { text = (await answer.json()).error.message; } catch { /* it was no JSON */ }
    throw new Error(text);
  }
}

export const options = async () => (await ask("/v1/options")).json();

// Calls onDraft for every draft, and returns the finished choice.
export async function stream(path, body, signal, onDraft) {
  const answer = await ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", finished = null;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") continue;
      const content = JSON.parse(data);
      if (content.error) throw new Error(content.error.message);
      for (const choice of content.choices) {
        if (choice.draft) onDraft(choice.draft);
        else finished = choice;
      }
    }
  }
  if (!finished) throw new Error("the connection ended before the text was finished");
  return finished;
}
