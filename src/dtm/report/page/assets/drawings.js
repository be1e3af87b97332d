// Drawings of samples: a path through a maze, a Sudoku grid, checked arithmetic.

function drawing(scene, sample) {
  if (!sample.drawing) return null;
  if (scene.kind === "maze") return maze(scene, sample.drawing, pathLine(scene, sample.drawing.path));
  if (scene.kind === "sudoku") return sudoku(sample.drawing);
  return arithmetic(sample.drawing);
}

function maze(scene, picture, inside) {
  const size = scene.walls.length;
  const walls = [];
  scene.walls.forEach((line, row) => [...line].forEach((mark, column) => {
    if (mark === "#") walls.push(`M${column} ${row}h1v1h-1z`);
  }));
  const [start, goal] = picture.ends;
  const label = `Maze of ${size} by ${size} cells, from ${start} to ${goal}, path of ${picture.path.length} cells`;
  return svg("svg", { class: "drawing", viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": label },
    svg("rect", { class: "floor", width: size, height: size, "stroke-width": 0.1 }),
    svg("path", { class: "wall", d: walls.join("") }),
    inside,
    startMark(start), goalMark(goal));
}

// The colours are those of benchmarks/movie.py.
const startMark = ([row, column]) =>
  svg("circle", { class: "start", cx: column + 0.5, cy: row + 0.5, r: 0.42 }, svg("title", {}, "start"));
const goalMark = ([row, column]) =>
  svg("rect", { class: "goal", x: column + 0.12, y: row + 0.12, width: 0.76, height: 0.76 }, svg("title", {}, "goal"));
const flawMark = ([row, column]) =>
  svg("path", { class: "flaw", d: `M${column + 0.2} ${row + 0.2}l.6 .6M${column + 0.8} ${row + 0.2}l-.6 .6` });

// A line that explains the marks of a maze; null for other tasks.
function mazeLegend(scene) {
  if (scene.kind !== "maze") return null;
  const marks = [[startMark, "start"], [goalMark, "goal"], [flawMark, "a wall, or a jump from the previous cell"]];
  return el("p", { class: "note marks" }, marks.map(([draw, text]) =>
    el("span", {}, svg("svg", { viewBox: "0 0 1 1", "aria-hidden": "true" }, draw([0, 0])), text)));
}

const isOpen = (scene, [row, column]) => (scene.walls[row] || "")[column] === ".";

function pathLine(scene, path) {
  const cells = path.filter((cell) => cell !== null);
  const points = cells.map(([row, column]) => `${column + 0.5},${row + 0.5}`).join(" ");
  return [svg("polyline", { class: "path", points }), ...flaws(scene, cells)];
}

// Draw a cross on every cell that is a wall or not adjacent to the previous cell.
function flaws(scene, cells) {
  const wrong = cells.filter((cell, place) => {
    const last = cells[place - 1];
    const jumps = last && Math.abs(last[0] - cell[0]) + Math.abs(last[1] - cell[1]) !== 1;
    return jumps || !isOpen(scene, cell);
  });
  return wrong.map(flawMark);
}

function sudoku(picture, tones) {
  const side = Math.sqrt(picture.puzzle.length);
  const width = side * 10;
  const cells = [...picture.grid].map((digit, place) => {
    const [x, y] = [(place % side) * 10, Math.floor(place / side) * 10];
    const given = picture.puzzle[place] !== "0";
    const kind = picture.wrong.includes(place) ? "digit wrong" : given ? "digit given" : "digit";
    const tone = tones && tones[place] ? { fill: tones[place] } : {};
    return [
      svg("rect", { class: "floor", x, y, width: 10, height: 10, "stroke-width": 0.3, style: tone }),
      svg("text", { class: kind, x: x + 5, y: y + 7.4, "text-anchor": "middle", style: { "font-size": "7px" } },
        digit === "0" ? "·" : visible(digit)),
    ];
  });
  const lines = `M0 0h${width}v${width}h${-width}zM${width / 2} 0v${width}M0 ${width / 2}h${width}`;
  const label = `Sudoku grid ${picture.grid}, ${picture.solved ? "solved" : `${picture.wrong.length} cells break a rule`}`;
  return svg("svg", { class: "drawing", viewBox: `-1 -1 ${width + 2} ${width + 2}`, role: "img", "aria-label": label },
    cells, svg("path", { class: "box", d: lines }));
}

const mark = (right, text) => el("span", { class: right ? "yes" : "no" }, `${right ? "✓" : "✗"} ${text}`);

function arithmetic(picture) {
  const value = picture.value === null ? "has no value" : `= ${picture.value}`;
  return el("div", { class: "check" },
    el("div", {}, picture.expression ? `${visible(picture.expression)} ${value}` : "no expression"),
    el("div", {}, mark(picture.solved, `target ${picture.target}`)),
    el("div", {}, mark(picture.uses, `numbers ${picture.numbers.join(", ")}`)));
}
