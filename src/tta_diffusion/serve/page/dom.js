// Small helpers for building the page.
export const $ = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && name !== "list") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export function svg(tag, attributes = {}) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// For a screen reader, without showing it.
export const say = (text) => { $("say").textContent = text; };

let timer = 0;
export function toast(text) {
  $("toast").textContent = text;
  $("toast").classList.add("on");
  clearTimeout(timer);
  timer = setTimeout(() => $("toast").classList.remove("on"), 1600);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch { // no permission, or not a secure page: show it, selected
    const [area, close] = $("sheet").children;
    area.value = text;
    close.onclick = () => $("sheet").close();
    $("sheet").showModal();
    area.select();
  }
}

export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
