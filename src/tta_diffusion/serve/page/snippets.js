// The same text elsewhere: as a command, in Python, with curl.
const SHIPPED = "tta-diffusion"; // the model that commands use when none is named
const quote = (text) => `'${String(text).replaceAll("'", "'\\''")}'`;
const shell = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : quote(text));
const python = (value) => JSON.stringify(value);
const setting = (name) => !["prompt", "text", "time", "times", "keep", "control", "seed", "model", "n"].includes(name);

// A text that begins with a dash would be read as an option: it goes last, behind --.
function around(text, options) {
  return text.startsWith("-") ? [...options, "--", quote(text)] : [quote(text), ...options];
}

export function command(path, body, model) {
  const rewrites = path === "/v1/rewrite", parts = [];
  for (const control of body.control || []) parts.push("--control", shell(control));
  if (body.time) parts.push("--time", body.time);
  for (const [start, end] of body.keep || []) parts.push("--keep-span", `${start}:${end}`);
  for (const [name, value] of Object.entries(body).filter(([name]) => setting(name))) {
    const flag = rewrites && !["allocation", "strength", "steps"].includes(name);
    parts.push(...(flag ? ["--set", `${name}=${shell(value)}`] : [`--${name.replaceAll("_", "-")}`, shell(String(value))]));
  }
  if (model !== SHIPPED) parts.push("--model", shell(model));
  parts.push("--seed", body.seed);
  return [rewrites ? "tta rewrite" : "tta generate", ...around(rewrites ? body.text : body.prompt, parts)].join(" ");
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
