// The table of samples: filter by text, reward and evaluation, sort by any column.

function samplesSection(run) {
  const { rows, total } = run.samples;
  if (!rows.length) return null;
  const chosen = state.samples;
  const body = el("tbody", {});
  const count = el("output", { id: "sample-count", class: "note", "aria-live": "polite" });
  const more = el("button", { type: "button", class: "more", onclick: () => { chosen.shown += 40; fill(); } }, "Show more");
  const fill = () => {
    const found = sorted(rows.filter((row) => fits(row, chosen)), chosen);
    body.replaceChildren(...found.slice(0, chosen.shown).map((row) => sampleRow(run, row)));
    count.textContent = `${found.length} of ${rows.length} samples match`;
    more.hidden = found.length <= chosen.shown;
  };
  const set = (name) => (event) => { chosen[name] = event.target.value; fill(); };
  const steps = [...new Map(rows.map((row) => [row.step, moment(run, row)]))];
  const field = (label, id, type, name) => el("label", {}, label,
    el("input", { id, type, step: "any", value: chosen[name] ?? "", oninput: set(name) }));
  const head = el("thead", {});
  const sort = (name) => { chosen.down = chosen.sort === name ? !chosen.down : true; chosen.sort = name; heads(); fill(); };
  const heads = () => head.replaceChildren(el("tr", {}, COLUMNS.map(([name, text]) => headCell(name, text, chosen, sort))));
  heads();
  fill();
  const few = rows.length < total
    ? `${number(rows.length)} of ${total.toLocaleString("en")} samples: of the evaluations shown, evenly over the order `
      + "of their rewards. The others are in samples/."
    : `All ${total.toLocaleString("en")} samples of the evaluations.`;
  return section("samples", "Samples", few,
    el("div", { class: "controls" },
      field("Text contains", "filter-text", "search", "text"),
      field("Reward from", "filter-low", "number", "low"), field("to", "filter-high", "number", "high"),
      choice("Model", "filter-step", [["", "all"], ...steps], chosen.step ?? "", (value) => set("step")({ target: { value } })),
      count),
    el("div", { class: "card scroll" },
      el("table", { class: "samples" }, el("caption", { class: "skip" }, "Samples"), head, body)),
    mazeLegend(run.scene), more);
}

const COLUMNS = [["reward", "Reward"], ["step", "Model"], ["prompt", "Prompt"], ["completion", "Completion"]];

function headCell(name, text, chosen, sort) {
  const order = chosen.sort !== name ? "none" : chosen.down ? "descending" : "ascending";
  const arrow = order === "none" ? "" : chosen.down ? " ↓" : " ↑";
  const id = `sort-${name}`;
  const click = () => {
    sort(name);
    document.getElementById(id).focus();
  };
  return el("th", { scope: "col", class: name === "reward" && "num", "aria-sort": order },
    el("button", { type: "button", id, onclick: click }, text + arrow));
}

function fits(row, chosen) {
  const wanted = (chosen.text || "").toLowerCase();
  const bound = (text, fallback) => (text && Number.isFinite(Number(text)) ? Number(text) : fallback);
  return row.reward >= bound(chosen.low, -Infinity) && row.reward <= bound(chosen.high, Infinity)
    && (!chosen.step || row.step === Number(chosen.step))
    && (!wanted || `${row.prompt}\n${row.completion}`.toLowerCase().includes(wanted));
}

function sorted(rows, chosen) {
  const key = (row) => row[chosen.sort];
  const order = (a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0);
  return [...rows].sort((a, b) => (chosen.down ? order(b, a) : order(a, b)));
}

function sampleRow(run, row) {
  return el("tr", { "data-reward": row.reward },
    el("td", { class: "num", "data-name": "Reward" }, reward(row.reward)),
    el("td", { "data-name": "Model" }, moment(run, row)),
    el("td", { class: "text-cell", "data-name": "Prompt" }, folded(row.prompt)),
    el("td", { class: "text-cell" }, el("div", { class: "sample" }, drawing(run.scene, row), textBox(row.completion))));
}

// Long prompts are collapsed; their end, which has the question, stays visible.
function folded(text) {
  if (text.length <= 160) return textBox(text);
  return el("details", {}, el("summary", {}, `… ${visible(text.slice(-100))}`), textBox(text));
}

function histogramSection(run) {
  const found = run.histogram;
  if (!found) return null;
  const shares = found.counts.map((counts) => {
    const total = counts.reduce((sum, count) => sum + count, 0);
    return counts.map((count) => count / total);
  });
  const figures = shares.map((_, place) => histogram(run, found, place, shares));
  return section("rewards", "Reward after each phase", "Share of the held-out samples by reward; the outline is the base.",
    el("div", { class: "grid" }, figures));
}

function histogram(run, found, place, shares) {
  const [width, floor, tallest] = [340, 108, 96];
  const most = Math.max(...shares.flat());
  const step = width / found.labels.length;
  const bar = (kind) => (share, index) => {
    const height = (share / most) * tallest;
    return svg("rect", { class: kind, x: (index + 0.12) * step, width: 0.76 * step, y: floor - height, height },
      svg("title", {}, `reward ${found.labels[index]}: ${number(share, "share")}`));
  };
  const every = Math.ceil(found.labels.length / 6);
  const labels = found.labels.map((label, index) => index % every === 0
    && svg("text", { x: (index + 0.5) * step, y: floor + 16, "text-anchor": "middle" }, label.split(" ")[0]));
  const at = found.evaluations[place];
  const name = moment(run, at);
  const bars = shares[place].map((share, index) => `${found.labels[index]}: ${number(share, "share")}`).join(", ");
  return el("figure", { class: "card histogram" },
    el("figcaption", {}, el("h3", {}, name), el("span", { class: "note" }, `a = ${number(at.tilt)}`)),
    svg("svg", { viewBox: `0 0 ${width} 130`, role: "img", "aria-label": `Rewards of ${name}. ${bars}` },
      shares[place].map(bar("bar")), place > 0 && shares[0].map(bar("bar before")), labels));
}
