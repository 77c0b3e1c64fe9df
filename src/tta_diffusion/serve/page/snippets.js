// The same text elsewhere: as a command, in Python, with curl.
const SHIPPED = "tta-diffusion"; // the model that commands use when none is named
const quote = (text) => `'${String(text).replaceAll("'", "'\\''")}'`;
const shell = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : quote(text));
const python = (value) => JSON.stringify(value);
const setting = (name) => !["prompt", "text", "time", "keep", "control", "seed", "model", "n"].includes(name);

const words = (body) => (body.keep || []).map(([a, b]) => [...body.text].slice(a, b).join("").trim());

export function command(path, body, model) {
  const parts = path === "/v1/rewrite" ? ["tta rewrite", quote(body.text)] : ["tta generate", quote(body.prompt)];
  for (const control of body.control || []) parts.push("--control", shell(control));
  if (body.time) parts.push("--time", body.time);
  for (const kept of words(body)) parts.push("--keep", quote(kept));
  for (const [name, value] of Object.entries(body).filter(([name]) => setting(name))) {
    const flag = path === "/v1/rewrite" && !["allocation", "strength", "steps"].includes(name);
    parts.push(...(flag ? ["--set", `${name}=${shell(value)}`] : [`--${name.replaceAll("_", "-")}`, shell(String(value))]));
  }
  if (model !== SHIPPED) parts.push("--model", shell(model));
  return [...parts, "--seed", body.seed].join(" ");
}

export function inPython(path, body, model) {
  const shared = body.control ? [`control=${python(body.control)}`] : [];
  for (const [name, value] of Object.entries(body).filter(([name]) => setting(name))) shared.push(`${name}=${python(value)}`);
  shared.push(`seed=${body.seed}`);
  const where = model === SHIPPED ? "" : python(model);
  const open = `from tta_diffusion import TTAPipeline\n\npipe = TTAPipeline.from_pretrained(${where})\n`;
  if (path !== "/v1/rewrite") return `${open}print(pipe(${[python(body.prompt), ...shared].join(", ")}).texts[0])\n`;
  const times = body.times ? `[${body.times.join(", ")}]` : body.time;
  return `${open}print(pipe.rewrite(${[python(body.text), times, ...shared].join(", ")}).texts[0])\n`;
}

export function curl(path, body, token) {
  const { times, ...sent } = body;
  const bearer = token ? ` -H "Authorization: Bearer $TTA_SERVE_TOKEN"` : "";
  return `curl ${location.origin}${path}${bearer} -H 'Content-Type: application/json' -d ${quote(JSON.stringify(sent))}`;
}
