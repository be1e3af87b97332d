// Helpers for elements, numbers and text. Untrusted text is only inserted as text nodes, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const COLOURS = 6;

const read = () => JSON.parse(document.getElementById("data").textContent);

// The choices of the reader, kept when a live page is redrawn.
const state = { run: 0, movie: {}, samples: { shown: 20, sort: "reward", down: true } };

function put(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    // The page's security policy forbids style attributes, but not style properties.
    else if (name === "style") Object.entries(value).forEach(([key, part]) => node.style.setProperty(key, part));
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const el = (tag, attributes, ...children) => put(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => put(document.createElementNS(SVG, tag), attributes, children);

// Show characters that would reorder or hide text as code points.
function visible(text) {
  return String(text).replace(HIDDEN, (mark) =>
    `⟨U+${mark.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

const textBox = (text) => el("div", { class: "text", dir: "auto" }, visible(text));

function number(value, format) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return format === "share" ? "0 %" : "0";
  if (format === "share") return `${(100 * value).toFixed(1)} %`;
  if (format === "bytes" && value >= 2 ** 30) return `${(value / 2 ** 30).toFixed(2)} GiB`;
  if (format === "bytes") return `${(value / 2 ** 20).toFixed(0)} MiB`;
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(1).replace("e+", "e");
  return size >= 100 ? value.toFixed(0) : value.toPrecision(3);
}

// Rewards are aligned in columns: always three decimals.
const reward = (value) => (Math.abs(value) < 1000 ? value.toFixed(3) : number(value));

// Ticks have enough decimals to distinguish two ticks that differ by a step.
function tickText(value, format, step) {
  if (format === "bytes" || !step || Math.abs(value) >= 1e6 || step < 1e-6) return number(value, format);
  const [factor, unit] = format === "share" ? [100, " %"] : [1, ""];
  const digits = Math.max(0, -Math.floor(Math.log10(step * factor) + 1e-9));
  const settings = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return (factor * value || 0).toLocaleString("en", settings) + unit;
}

function niceTicks(low, high, count) {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(k * step);
  return ticks;
}

const colour = (index) => `var(--c${index % COLOURS})`;

function choice(label, id, options, chosen, change) {
  const found = options.map(([value, text]) => el("option", { value, selected: String(value) === String(chosen) }, text));
  return el("label", {}, label, el("select", { id, onchange: (event) => change(event.target.value) }, found));
}

function section(id, title, note, ...content) {
  return el("section", { id, "aria-labelledby": `${id}-title` },
    el("h2", { id: `${id}-title` }, title), note && el("p", { class: "note" }, note), content);
}

// The name of an evaluation; the one before the first step is that of the base.
function moment(run, at) {
  if (at.step === 0) return "base";
  const last = run.tables.evaluation ? Math.max(...run.tables.evaluation.step) : at.step;
  return run.finished && at.step === last ? "tuned" : `step ${at.step}`;
}
