"""The look of a report: one style sheet for light and dark screens and for paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1d2329; --soft: #5c6670; --page: #ffffff; --panel: #f5f6f8; --line: #d5dae0; --ours: #e8f2fa; --mark: #0f6fab;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e4e7ea; --soft: #9aa5af; --page: #14181c; --panel: #1d2329; --line: #363f48; --ours: #16303f;
    --mark: #6bb9ea;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 76rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif;
}
h1 { font-size: 1.7rem; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .8rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.6rem 0 .5rem; }
p.note, figcaption, .made { color: var(--soft); font-size: .85rem; max-width: 60rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
th:first-child, td:first-child, table.plain td, table.plain th { text-align: left; }
td:first-child { overflow-wrap: anywhere; min-width: 11rem; }
table.plain td { overflow-wrap: anywhere; }
tr.ours td { background: var(--ours); }
td small { display: block; color: var(--soft); white-space: nowrap; }
figure { margin: 1rem 0; }
figure svg { max-width: 100%; height: auto; }
.texts { display: grid; gap: .6rem; }
.text { background: var(--panel); border-left: 3px solid var(--mark); padding: .5rem .8rem; break-inside: avoid; }
.text p { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.text small { color: var(--soft); }
.empty { color: var(--soft); font-style: italic; }
@media print {
  :root { --ink: #000; --soft: #444; --page: #fff; --panel: #fff; --line: #999; --ours: #eee; --mark: #000; }
  body { padding: 0; max-width: none; font-size: 10pt; }
  .scroll { overflow: visible; }
  table { font-size: 7.5pt; }
  th, td { padding: .2rem .3rem; }
  td:first-child { min-width: 0; }
  tr, figure { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
"""
