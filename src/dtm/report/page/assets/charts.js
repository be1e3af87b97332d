// Curves with intervals, drawn as SVG: a crosshair for the pointer, arrow keys for the keyboard.

const BOX = { width: 340, height: 180, left: 46, right: 12, top: 10, bottom: 24 };
const AXES = { step: ["Optimiser steps", 1], seconds: ["Minutes", 1 / 60], spent_tokens: ["Tokens through the models", 1] };

function seriesOf(spec, runs, groups) {
  const found = [];
  for (const run of runs) {
    const own = run.charts.find((chart) => chart.id === spec.id);
    for (const [place, line] of (own ? own.lines : []).entries()) {
      if (place > 0 && runs.length > 1) continue;
      const points = pointsOf(run.tables[line.table], line);
      const [name, group] = runs.length > 1 ? [run.name, run.group] : [line.label, line.label];
      const paint = runs.length > 1 ? groups.indexOf(run.group) : place && 5;
      const dots = !["step", "rollouts"].includes(line.table);
      if (points.length) found.push({ name, group, points, faint: place > 0, dots, colour: paint });
    }
  }
  return found;
}

function pointsOf(table, line) {
  const factor = AXES[state.axis][1];
  const xs = table[state.axis] || table.step;
  const points = [];
  xs.forEach((x, row) => {
    const y = table[line.y][row];
    if (x === null || y === null) return;
    const end = (side) => (line.ranged && table[`${line.y}_${side}`] ? table[`${line.y}_${side}`][row] : null);
    points.push({ x: x * factor, y, low: end("low"), high: end("high") });
  });
  return points;
}

function scales(spec, series) {
  const all = series.flatMap((one) => one.points);
  const values = all.flatMap((point) => [point.y, point.low, point.high]).filter((value) => value !== null);
  values.push(...spec.references.map((reference) => reference.value));
  let low = Math.min(...values, ...(spec.zero ? [0] : []));
  let high = Math.max(...values);
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  low = spec.zero && low === 0 ? 0 : low - room;
  high += room;
  let left = Math.min(...all.map((point) => point.x));
  let right = Math.max(...all.map((point) => point.x));
  const alone = left === right ? left : null; // a single point is drawn in the middle
  if (alone !== null) [left, right] = [alone - 1, alone + 1];
  const inner = { width: BOX.width - BOX.left - BOX.right, height: BOX.height - BOX.top - BOX.bottom };
  return {
    low, high, left, right, alone,
    x: (value) => BOX.left + ((value - left) / (right - left)) * inner.width,
    y: (value) => BOX.top + (1 - (value - low) / (high - low)) * inner.height,
  };
}

function chart(spec, runs, groups) {
  const series = seriesOf(spec, runs, groups);
  if (!series.length) return null;
  const scale = scales(spec, series);
  const readout = el("output", { class: "readout", "aria-live": "off" }, lastValues(spec, series));
  const cursor = svg("line", { class: "cursor", y1: BOX.top, y2: BOX.height - BOX.bottom, visibility: "hidden" });
  const size = `0 0 ${BOX.width} ${BOX.height}`;
  const picture = svg("svg", { viewBox: size, role: "img", tabindex: 0, "aria-label": spoken(spec, series) },
    frame(spec, scale), series.map((one) => curve(one, scale)), cursor);
  follow(picture, cursor, readout, spec, series, scale);
  return el("figure", { class: "card chart", "data-chart": spec.id },
    el("figcaption", {}, el("h3", {}, spec.title)), readout, picture);
}

function frame(spec, scale) {
  const bottom = BOX.height - BOX.bottom;
  const unit = spec.format === "bytes" ? 2 ** 20 : 1;
  const rows = niceTicks(scale.low / unit, scale.high / unit, 4).map((tick) => tick * unit);
  const columns = scale.alone === null ? niceTicks(scale.left, scale.right, 4) : [scale.alone];
  const across = (kind, y) => svg("line", { class: kind, x1: BOX.left, x2: BOX.width - BOX.right, y1: y, y2: y });
  return [
    rows.map((tick) => [
      across("axis", scale.y(tick)),
      svg("text", { x: BOX.left - 6, y: scale.y(tick) + 4, "text-anchor": "end" },
        tickText(tick, spec.format, rows[1] - rows[0])),
    ]),
    columns.map((tick) => svg("text", { x: scale.x(tick), y: bottom + 16, "text-anchor": "middle" },
      tickText(tick, null, columns[1] - columns[0]))),
    spec.references.map((reference) => [
      across("reference", scale.y(reference.value)),
      svg("text", { x: BOX.left + 4, y: scale.y(reference.value) - 4 }, reference.label),
    ]),
  ].flat(2);
}

function curve(one, scale) {
  const paint = colour(one.colour);
  const at = (x, y) => `${scale.x(x).toFixed(1)},${scale.y(y).toFixed(1)}`;
  const ranged = one.points.filter((point) => point.low !== null && point.high !== null);
  const parts = [];
  if (ranged.length > 1) {
    const outline = [...ranged.map((p) => at(p.x, p.high)), ...ranged.reverse().map((p) => at(p.x, p.low))];
    parts.push(svg("polygon", { class: "band", points: outline.join(" "), style: { fill: paint } }));
  }
  for (const p of ranged) {
    const ends = { x1: scale.x(p.x), x2: scale.x(p.x), y1: scale.y(p.low), y2: scale.y(p.high) };
    parts.push(svg("line", { class: "whisker", ...ends, style: { stroke: paint } }));
  }
  const points = one.points.map((p) => at(p.x, p.y)).join(" ");
  parts.push(svg("polyline", { class: one.faint ? "curve faint" : "curve", points, style: { stroke: paint } }));
  if (one.dots && one.points.length <= 40) {
    const dot = (p) => ({ class: "point", cx: scale.x(p.x), cy: scale.y(p.y), r: 3, style: { fill: paint } });
    parts.push(...one.points.map((p) => svg("circle", dot(p))));
  }
  return parts;
}

const nearest = (points, x) => points.reduce((best, p) => (Math.abs(p.x - x) < Math.abs(best.x - x) ? p : best));

// One value per group: that of its curve with the interval, or the mean over the curves of its runs.
function values(spec, series, pick) {
  const groups = new Map(series.map((one) => [one.group, []]));
  series.forEach((one) => groups.get(one.group).push(pick(one.points)));
  const texts = [...groups].map(([name, points]) => {
    const mean = points.reduce((sum, point) => sum + point.y, 0) / points.length;
    const { low, high } = points[0];
    const range = points.length > 1 || low === null
      ? "" : ` (${number(low, spec.format)} to ${number(high, spec.format)})`;
    return `${groups.size > 1 ? `${visible(name)} ` : ""}${number(mean, spec.format)}${range}`;
  });
  return texts.join(" · ");
}

function lastValues(spec, series) {
  const averaged = series.length > new Set(series.map((one) => one.group)).size ? ", mean per setting:" : "";
  return `Latest${averaged} ${values(spec, series, (points) => points[points.length - 1])}`;
}

function follow(picture, cursor, readout, spec, series, scale) {
  const places = [...new Set(series.flatMap((one) => one.points.map((p) => p.x)))].sort((a, b) => a - b);
  let place = places.length - 1;
  const show = (x) => {
    cursor.setAttribute("x1", scale.x(x));
    cursor.setAttribute("x2", scale.x(x));
    cursor.setAttribute("visibility", "visible");
    readout.textContent = `${AXES[state.axis][0]} ${number(x)}: ${values(spec, series, (points) => nearest(points, x))}`;
  };
  const leave = () => {
    cursor.setAttribute("visibility", "hidden");
    readout.textContent = lastValues(spec, series);
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * BOX.width;
    const wanted = scale.left + ((x - BOX.left) / (BOX.width - BOX.left - BOX.right)) * (scale.right - scale.left);
    place = places.indexOf(nearest(places.map((value) => ({ x: value })), wanted).x);
    show(places[place]);
  });
  picture.addEventListener("pointerleave", leave);
  picture.addEventListener("blur", leave);
  picture.addEventListener("focus", () => readout.setAttribute("aria-live", "polite"));
  picture.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -places.length, End: places.length }[event.key];
    if (!move) return;
    event.preventDefault();
    place = Math.max(0, Math.min(places.length - 1, place + move));
    show(places[place]);
  });
}

function spoken(spec, series) {
  const lines = series.slice(0, 8).map((one) => {
    const [first, last] = [one.points[0], one.points[one.points.length - 1]];
    return `${one.name}: from ${number(first.y, spec.format)} to ${number(last.y, spec.format)}`;
  });
  return `${spec.title} against ${AXES[state.axis][0].toLowerCase()}. ${lines.join("; ")}. Arrow keys read the values.`;
}

function legend(groups) {
  return el("ul", { class: "legend" }, groups.map((name, index) =>
    el("li", {}, el("i", { style: { background: colour(index) } }), visible(name))));
}
