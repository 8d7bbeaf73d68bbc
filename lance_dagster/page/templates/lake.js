"use strict";
// Draws the graph with uPlot, compares moments, sorts and filters the tables. What the values are is written in
// drawn_values.py. Texts reach the page as text alone: nothing of the lake is ever read as HTML.
(() => {
const lake = JSON.parse(document.getElementById("values").textContent);
const byId = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const FONT = "12px system-ui, sans-serif", LANE = 24, STEP = 25, MOST_LANES = 400, CLOSE = 60;
const many = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

function make(tag, content, className) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  for (const part of [content].flat()) if (part !== null && part !== undefined) node.append(part);
  return node;
}
const isolated = (text) => make("bdi", text);
function runNode(run) {
  const node = make(lake.dagster ? "a" : "code", run.slice(0, 8));
  if (lake.dagster) { node.href = `${lake.dagster}/runs/${encodeURIComponent(run)}`; node.rel = "noreferrer"; node.className = "mono"; }
  node.title = run;
  return node;
}
const shownTime = (seconds) => `${new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;
const shownVersion = (version) => version === null ? "-" : typeof version === "number" ? `main@${version}` : version;

// How many rows a version of main has, for the versions that the page has.
const rows = new Map();
lake.growth.forEach((numbers, table) => {
  for (let at = 0; at < numbers.length; at += 3) rows.set(`${table} ${numbers[at]}`, numbers[at + 2]);
});
const rowsOf = (table, version) => version === null ? 0 : rows.get(`${table} ${version}`);

function versionsTable(moves) {
  const body = make("tbody");
  for (const [table, before, after] of moves) {
    const [from, to] = [rowsOf(table, before), rowsOf(table, after)];
    const change = from === undefined || to === undefined ? "" : `${to > from ? "+" : ""}${(to - from).toLocaleString("en")}`;
    body.append(make("tr", [
      make("td", isolated(lake.tables[table]), "name"),
      make("td", shownVersion(before), "mono"), make("td", shownVersion(after), "mono"),
      make("td", to === undefined ? "" : to.toLocaleString("en"), "number"), make("td", change, "number"),
    ]));
  }
  const head = make("tr", ["table", "before", "after"].map((name) => make("th", name)));
  head.append(make("th", "rows after", "number"), make("th", "rows, net", "number"));
  return make("div", make("table", [make("thead", head), body]), "scroll");
}

// ---- the age of the page ---------------------------------------------------------------------------------------
const hours = (Date.now() / 1000 - lake.made) / 3600;
if (hours >= 1) {
  const age = hours < 48 ? many(Math.floor(hours), "hour") : many(Math.floor(hours / 24), "day");
  byId("age").append(make("span", `, ${age} ago: make it again for what is now`, hours >= 24 ? "bad" : "warn"));
}

// ---- the graph -------------------------------------------------------------------------------------------------
const commits = lake.commits, columns = commits.length + lake.waiting.length;
const changed = new Map();
commits.forEach((commit, place) => { for (const [table] of commit[5]) { if (!changed.has(table)) changed.set(table, []); changed.get(table).push(place); } });
lake.waiting.forEach((candidate) => { for (const [table] of candidate[3]) if (!changed.has(table)) changed.set(table, []); });
// The places of the commits that each channel named, and the place where it is.
const stops = lake.channels.map(([name, moves]) => ({
  name, at: moves.length ? moves[moves.length - 1][5] : -1,
  moves: moves.filter((move) => move[5] >= 0),
}));
let lanes = [], shown = STEP, chosen = -1, graph = null, overview = null;
const HEADS = stops.length + 1, BEGIN = -0.6, END = columns - 0.4;

function chooseLanes() {
  const text = byId("lanes").value.trim().toLowerCase();
  const tables = [...changed.keys()].filter((table) => lake.tables[table].toLowerCase().includes(text));
  // What waits is above; then the tables that changed last.
  const urgent = new Set(lake.waiting.flatMap((candidate) => candidate[3].map(([table]) => table)));
  const last = (table) => { const places = changed.get(table); return places.length ? places[places.length - 1] : -1; };
  tables.sort((a, b) => urgent.has(b) - urgent.has(a) || last(b) - last(a) || a - b);
  lanes = tables.slice(0, Math.min(shown, MOST_LANES));
  const left = tables.length - lanes.length;
  byId("more").hidden = left === 0;
  byId("hidden").textContent = left ? `${many(left, "more table")}, which changed earlier` : "";
  byId("lower").hidden = lanes.length >= MOST_LANES;
}

function cut(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= Math.max(1, Math.floor(end / 16));
  return `${text.slice(0, end)}…`;
}
// The end of a name tells tables of one folder apart, so its beginning is left out.
function cutFront(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let begin = 1;
  while (begin < text.length - 1 && context.measureText(`…${text.slice(begin)}`).width > width) begin += 1;
  return `…${text.slice(begin)}`;
}

function labelWidth() {
  const context = document.createElement("canvas").getContext("2d");
  context.font = FONT;
  const names = ["main", ...stops.map((stop) => stop.name), ...lanes.map((table) => lake.tables[table])];
  const widest = Math.max(40, ...names.map((name) => context.measureText(name).width));
  return Math.ceil(Math.min(widest, byId("graph").clientWidth * 0.3, 260)) + 16;
}

function drawLanes(u) {
  const { ctx: context, bbox: box } = u, ratio = devicePixelRatio;
  const x = (place) => u.valToPos(place, "x", true), y = (lane) => u.valToPos(lane, "y", true);
  const low = Math.max(0, Math.floor(u.scales.x.min) - 1), high = Math.min(columns - 1, Math.ceil(u.scales.x.max) + 1);
  const space = (x(1) - x(0)), radius = Math.max(1.5 * ratio, Math.min(5 * ratio, space / 3));
  const ink = colour("ink"), muted = colour("muted"), rule = colour("rule"), accent = colour("accent");
  const laneOf = new Map(lanes.map((table, place) => [table, HEADS + place]));
  context.save();
  context.beginPath(); context.rect(box.left, box.top - ratio, box.width, box.height + 2 * ratio); context.clip();
  context.lineWidth = ratio; context.strokeStyle = rule;
  context.beginPath();
  for (let lane = 0; lane < HEADS + lanes.length; lane += 1) { context.moveTo(box.left, y(lane)); context.lineTo(box.left + box.width, y(lane)); }
  context.stroke();
  if (chosen >= 0) { context.fillStyle = colour("hover"); const wide = Math.max(space, 6 * ratio); context.fillRect(x(chosen) - wide / 2, box.top, wide, box.height); }
  // main, and from it down to each table that a commit changed.
  const main = y(HEADS - 1), last = Math.min(high, commits.length - 1);
  context.strokeStyle = accent; context.lineWidth = 2 * ratio;
  context.beginPath(); context.moveTo(x(low), main); context.lineTo(x(Math.max(low, last)), main); if (last >= low) context.stroke();
  // Of thousands of commits, these lines would cover the tables.
  context.lineWidth = ratio; context.globalAlpha = space < 8 * ratio ? 0.25 : 0.45;
  context.beginPath();
  for (let place = low; place <= last && space > 3 * ratio; place += 1) {
    let deepest = -1;
    for (const [table] of commits[place][5]) deepest = Math.max(deepest, laneOf.get(table) ?? -1);
    if (deepest >= 0) { context.moveTo(x(place), main); context.lineTo(x(place), y(deepest)); }
  }
  context.stroke(); context.globalAlpha = 1;
  drawWaiting(context, laneOf, { x, y, low, high, space, ratio, box });
  context.fillStyle = accent;
  context.beginPath();
  for (let place = low; place <= last; place += 1) {
    const at = x(place);
    context.moveTo(at + radius, main); context.arc(at, main, radius, 0, 7);
    for (const [table] of commits[place][5]) {
      const lane = laneOf.get(table);
      if (lane !== undefined) { const level = y(lane); context.moveTo(at + radius, level); context.arc(at, level, radius, 0, 7); }
    }
  }
  context.fill();
  drawChannels(context, { x, y, low, high, space, ratio, radius, box });
  // The message of a commit, where its column has room for some letters.
  if (space > 80 * ratio) {
    context.font = `${11 * ratio}px system-ui, sans-serif`; context.textAlign = "center"; context.textBaseline = "bottom";
    context.fillStyle = muted;
    for (let place = low; place <= last; place += 1) context.fillText(cut(context, commits[place][3], space - 10 * ratio), x(place), main - 7 * ratio);
  }
  context.restore();
  context.save();
  context.font = `${12 * ratio}px system-ui, sans-serif`; context.textAlign = "right"; context.textBaseline = "middle";
  const names = [...stops.map((stop) => stop.name), "main", ...lanes.map((table) => lake.tables[table])];
  names.forEach((name, lane) => {
    context.fillStyle = lane < HEADS - 1 ? colour("channel") : ink;
    context.fillText(cutFront(context, name, box.left - 14 * ratio), box.left - 8 * ratio, y(lane));
  });
  context.restore();
}

function drawWaiting(context, laneOf, { x, y, low, high, space, ratio, box }) {
  if (!lake.waiting.length) return;
  const border = x(commits.length - 0.5);
  context.setLineDash([3 * ratio, 3 * ratio]); context.strokeStyle = colour("muted"); context.lineWidth = ratio;
  context.beginPath(); context.moveTo(border, box.top); context.lineTo(border, box.top + box.height); context.stroke();
  lake.waiting.forEach(([id, , refused, tables], number) => {
    const place = commits.length + number;
    context.strokeStyle = colour(refused ? "bad" : "warn");
    for (const [table, fork, version] of tables) {
      const lane = laneOf.get(table);
      if (lane === undefined || (place < low && fork < low) || fork > high) continue;
      const level = y(lane), size = Math.max(3 * ratio, Math.min(5 * ratio, space / 3));
      context.lineWidth = 1.5 * ratio;
      context.setLineDash([4 * ratio, 3 * ratio]);
      // A line that would cover later commits, or another candidate, runs below them.
      const places = changed.get(table), crosses = fork < places[places.length - 1] || lake.waiting.slice(0, number).some((other) => other[3].some(([same]) => same === table));
      const bend = crosses ? 9 * ratio : 0, begin = fork >= 0 ? x(fork) : box.left, end = x(place);
      context.beginPath(); context.moveTo(begin, level);
      if (bend) { const turn = Math.min(16 * ratio, (end - begin) / 2); context.lineTo(begin + turn, level + bend); context.lineTo(end - turn, level + bend); }
      context.lineTo(end, level); context.stroke();
      context.setLineDash([]); context.lineWidth = 2 * ratio;
      context.beginPath(); context.arc(x(place), level, size, 0, 7);
      context.fillStyle = colour("card"); context.fill(); context.stroke();
      if (version === null) { context.beginPath(); context.moveTo(x(place) - size, level + size); context.lineTo(x(place) + size, level - size); context.stroke(); }
    }
    if (space > 44 * ratio) {
      context.font = `${11 * ratio}px ui-monospace, monospace`; context.textAlign = "center"; context.textBaseline = "middle";
      context.fillStyle = colour(refused ? "bad" : "warn");
      context.fillText(cut(context, id.slice(0, 8), space - 4 * ratio), x(place), y(HEADS - 1));
    }
  });
  context.setLineDash([]);
}

function drawChannels(context, { x, y, low, high, space, ratio, radius, box }) {
  context.fillStyle = context.strokeStyle = colour("channel");
  stops.forEach((stop, lane) => {
    const level = y(lane);
    for (const move of stop.moves) {
      const at = x(move[5]);
      if (move[5] < low || move[5] > high) continue;
      context.beginPath();
      if (move[1] === "rollback") { context.moveTo(at + radius, level - radius); context.lineTo(at - radius, level); context.lineTo(at + radius, level + radius); }
      else context.arc(at, level, radius * 0.7, 0, 7);
      context.fill();
    }
    if (stop.at >= low && stop.at <= high) {
      const at = x(stop.at), size = 7 * ratio;
      context.fillStyle = colour("card"); context.fillRect(at - size, level - size, 2.4 * size, 2 * size);
      context.fillStyle = colour("channel");
      context.beginPath(); context.moveTo(at - 2 * ratio, level - size); context.lineTo(at + size * 1.6, level - size); context.lineTo(at + size, level - size / 4);
      context.lineTo(at + size * 1.6, level + size / 2); context.lineTo(at, level + size / 2); context.lineTo(at, level + size * 1.2); context.lineTo(at - 2 * ratio, level + size * 1.2);
      context.closePath(); context.fill();
      if (space > 3 * ratio) { context.lineWidth = ratio; context.globalAlpha = 0.5; context.beginPath(); context.moveTo(at, level + size); context.lineTo(at, y(HEADS - 1)); context.stroke(); context.globalAlpha = 1; }
    }
  });
}

function shownTicks(u, splits) {
  let day = "";
  return splits.map((place) => {
    if (!Number.isInteger(place) || place < 0) return "";
    if (place >= commits.length) return "";
    const text = new Date(commits[place][1] * 1000).toISOString();
    const label = text.slice(0, 10) === day ? text.slice(11, 16) : `${text.slice(11, 16)}\n${text.slice(0, 10)}`;
    day = text.slice(0, 10);
    return label;
  });
}

function about(place) {
  if (place < commits.length) {
    const [id, seconds, person, message, , changes] = commits[place];
    return [make("strong", isolated(message || "no message")), make("div", `${id}, ${shownTime(seconds)}`), make("div", isolated(lake.people[person])),
      make("div", changes.length <= 4 ? changes.map(([table, , after]) => make("div", isolated(`${lake.tables[table]} ${shownVersion(after)}`))) : many(changes.length, "table")),
      ...namesAt(place)];
  }
  const [id, , refused, tables] = lake.waiting[place - commits.length];
  return [make("strong", refused ? "refused: a check failed" : "waits to be published", refused ? "bad" : "warn"), make("div", id), make("div", many(tables.length, "table"))];
}
const namesAt = (place) => stops.filter((stop) => stop.at === place).map((stop) => make("div", isolated(stop.name)));

function showHint(u) {
  const hint = byId("hint"), place = u.cursor.idx;
  if (place === null || place === undefined || u.cursor.left < 0) { hint.hidden = true; return; }
  hint.replaceChildren(...about(place));
  hint.hidden = false;
  const left = u.cursor.left + u.bbox.left / devicePixelRatio, room = byId("graph").clientWidth;
  hint.style.left = `${Math.max(0, Math.min(left + 14, room - hint.offsetWidth))}px`;
  hint.style.top = `${u.cursor.top + 22}px`;
}

function choose(place) {
  chosen = Math.max(0, Math.min(columns - 1, place));
  const box = byId("chosen");
  box.hidden = false;
  if (chosen < commits.length) {
    const [id, seconds, person, message, runs, changes] = commits[chosen];
    const facts = make("p", [make("code", id), " ", isolated(message), make("br"),
      make("span", [`${shownTime(seconds)} by `, isolated(lake.people[person]), runs.length ? ", run " : "", ...runs.flatMap((run, at) => at ? [", ", runNode(run)] : [runNode(run)])], "muted")]);
    box.replaceChildren(facts, changes.length ? versionsTable(changes) : make("p", "It changed no table.", "muted"));
  } else {
    const [id, runs, refused, tables] = lake.waiting[chosen - commits.length];
    const list = make("ul", tables.map(([table, , version]) => make("li", [isolated(lake.tables[table]), " ", make("code", version ?? "its branch is gone")])), "plain");
    box.replaceChildren(make("p", [make("strong", refused ? "refused" : "waits", refused ? "bad" : "warn"), " ", make("code", id), runs.length ? ", run " : "", ...runs.flatMap((run, at) => at ? [", ", runNode(run)] : [runNode(run)])]), list);
  }
  const { min, max } = graph.scales.x;
  if (chosen < min || chosen > max) view(chosen - (max - min) / 2, chosen + (max - min) / 2); else graph.redraw(false);
}

// Zooming keeps at least four columns, and stays where there are columns, with room for the text of the outer ones.
function view(min, max) {
  const width = Math.max(4, Math.min(max - min, END - BEGIN));
  const from = Math.max(BEGIN, Math.min((min + max - width) / 2, END - width));
  graph.setScale("x", { min: from, max: from + width });
}
function zoom(factor) { const { min, max } = graph.scales.x, middle = (min + max) / 2, half = (max - min) / 2 * factor; view(middle - half, middle + half); }
function pan(share) { const { min, max } = graph.scales.x, step = (max - min) * share; view(min + step, max + step); }
const closest = () => Math.max(4, Math.min(END - BEGIN, Math.floor(byId("graph").clientWidth / 16), CLOSE));

function noteSpan(u) {
  const low = Math.max(0, Math.ceil(u.scales.x.min)), high = Math.min(commits.length - 1, Math.floor(u.scales.x.max));
  byId("span").textContent = high < low ? "" : `${(high - low + 1).toLocaleString("en")} of ${many(commits.length, "commit")}${lake.older ? ", and older ones" : ""}`;
  if (overview) {
    const left = overview.valToPos(Math.max(0, u.scales.x.min), "x"), right = overview.valToPos(Math.min(columns - 1, u.scales.x.max), "x");
    if (Number.isFinite(left)) overview.setSelect({ left, width: Math.max(3, right - left), top: 0, height: overview.bbox.height / devicePixelRatio }, false);
  }
}

function drawGraph() {
  const place = byId("graph"), kept = graph && { min: graph.scales.x.min, max: graph.scales.x.max };
  chooseLanes();
  if (graph) graph.destroy();
  const names = labelWidth(), levels = HEADS + lanes.length;
  const xs = Array.from({ length: columns }, (_, at) => at);
  graph = new uPlot({
    width: place.clientWidth, height: levels * LANE + 46, legend: { show: false }, padding: [4, 14, 0, 0],
    scales: { x: { time: false, range: (u, min, max) => [min, max] }, y: { range: () => [levels - 0.5, -0.5] } },
    axes: [
      { stroke: () => colour("muted"), grid: { show: false }, ticks: { show: false }, font: FONT, size: 38, space: 90,
        incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000], values: shownTicks },
      { size: names, values: (u, splits) => splits.map(() => ""), grid: { show: false }, ticks: { show: false } },
    ],
    series: [{}, { paths: () => null, points: { show: false } }],
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false, dist: 6 },
      bind: { dblclick: () => () => { view(BEGIN, END); return null; } } },
    hooks: {
      draw: [drawLanes], setCursor: [showHint], setScale: [(u, key) => { if (key === "x") noteSpan(u); }],
      setSelect: [(u) => {
        if (u.select.width > 6) view(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      }],
    },
  }, [xs, xs.map(() => HEADS - 1)], (u, start) => { place.replaceChildren(u.root, hintNode()); start(); });
  let pressed = null;
  graph.over.addEventListener("mousedown", (event) => { pressed = event.clientX; });
  graph.over.addEventListener("click", (event) => { if (pressed !== null && Math.abs(event.clientX - pressed) < 6 && graph.cursor.idx !== null) choose(graph.cursor.idx); });
  graph.over.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) { if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); pan(event.deltaX / 800); } return; }
    event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8);
  }, { passive: false });
  if (kept) view(kept.min, kept.max); else view(END - closest(), END);
}
function hintNode() { const node = byId("hint") || make("div"); node.id = "hint"; node.hidden = true; return node; }

function drawOverview() {
  const place = byId("overview");
  if (overview) overview.destroy();
  overview = null;
  if (columns <= closest()) return;
  // Roots, so that the commit by which all tables joined the lake does not hide all others.
  const xs = Array.from({ length: columns }, (_, at) => at), counts = xs.map((at) => (at < commits.length ? Math.sqrt(commits[at][5].length) : 0));
  overview = new uPlot({
    width: place.clientWidth, height: 44, legend: { show: false }, padding: [4, 14, 4, 14],
    scales: { x: { time: false }, y: { range: (u, min, max) => [0, Math.max(1, max)] } },
    axes: [{ show: false }, { show: false }],
    series: [{}, { stroke: () => colour("accent"), fill: () => colour("accent"), width: 1, points: { show: false }, paths: uPlot.paths.bars({ size: [0.7, 20] }) }],
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
    hooks: { ready: [(u) => { overview = u; noteSpan(graph); }], setSelect: [(u) => { if (u.select.width > 2) view(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")); }] },
  }, [xs, counts], place);
  overview.over.addEventListener("click", (event) => {
    const at = overview.posToVal(event.offsetX, "x"), half = (graph.scales.x.max - graph.scales.x.min) / 2;
    view(at - half, at + half);
  });
}

function begin() {
  if (!columns) { byId("graph").replaceChildren(make("p", "There is no commit yet.", "muted")); return; }
  byId("tools").hidden = byId("legend").hidden = false;
  drawGraph(); drawOverview(); noteSpan(graph);
  byId("newest").onclick = () => view(END - closest(), END);
  byId("all").onclick = () => view(BEGIN, END);
  byId("closer").onclick = () => zoom(0.5);
  byId("wider").onclick = () => zoom(2);
  byId("older").onclick = () => pan(-0.5);
  byId("newer").onclick = () => pan(0.5);
  byId("lower").onclick = () => { shown += STEP * 2; drawGraph(); };
  byId("lanes").oninput = () => { shown = STEP; drawGraph(); };
  byId("graph").onkeydown = (event) => {
    const act = { ArrowLeft: () => choose(chosen < 0 ? columns - 1 : chosen - 1), ArrowRight: () => choose(chosen < 0 ? columns - 1 : chosen + 1), "+": () => zoom(0.5), "-": () => zoom(2) }[event.key];
    if (act) { event.preventDefault(); act(); }
  };
  let width = byId("graph").clientWidth;
  new ResizeObserver(() => {
    if (byId("graph").clientWidth === width) return;
    width = byId("graph").clientWidth;
    drawGraph(); drawOverview(); noteSpan(graph);
  }).observe(byId("graph"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawGraph(); drawOverview(); noteSpan(graph); });
}
begin();

// ---- two moments of a channel ----------------------------------------------------------------------------------
function compare() {
  const [, moves] = lake.channels[byId("channel").value], from = Number(byId("before").value), to = Number(byId("after").value);
  const net = new Map();
  for (let at = Math.min(from, to) + 1; at <= Math.max(from, to); at += 1)
    for (const [table, before, after] of moves[at][7]) net.set(table, [table, net.has(table) ? net.get(table)[1] : before, after]);
  const differing = [...net.values()].filter(([, before, after]) => before !== after).map(([table, before, after]) => (from <= to ? [table, before, after] : [table, after, before]));
  const [older, newer] = [moves[from][4], moves[to][4]];
  const command = `lance-dagster diff ${lake.root} ${older}..${newer} --stat`;
  byId("difference").replaceChildren(...(!differing.length ? [make("p", "No table differs.", "muted")] : [
    versionsTable(differing),
    ...(older && newer ? [make("p", ["Counted by rows: ", make("code", command)], "muted")] : []),
  ]));
}
function fillMoments() {
  const [, moves] = lake.channels[byId("channel").value];
  for (const id of ["before", "after"]) {
    byId(id).replaceChildren(...moves.map((move, at) => {
      const option = make("option", `${shownTime(move[0])}  ${move[1]} ${move[4]}${move[3] ? `: ${move[3].slice(0, 60)}` : ""}`);
      option.value = at;
      return option;
    }).reverse());
  }
  byId("after").value = moves.length - 1;
  byId("before").value = Math.max(0, moves.length - 2);
  compare();
}
const comparable = lake.channels.some(([, moves]) => moves.length > 1);
if (comparable) {
  byId("comparison").hidden = false;
  byId("channel").append(...lake.channels.map(([name], at) => { const option = make("option", name); option.value = at; return option; }));
  byId("channel").onchange = fillMoments;
  byId("before").onchange = byId("after").onchange = compare;
  fillMoments();
}

// ---- the list of tables ----------------------------------------------------------------------------------------
const list = byId("list");
if (list) {
  const body = list.tBodies[0], all = [...body.rows];
  byId("filter").hidden = all.length < 8;
  const closeDetails = () => { for (const row of body.querySelectorAll("tr.growth")) row.remove(); };
  byId("named").oninput = () => {
    closeDetails();
    const text = byId("named").value.trim().toLowerCase();
    let count = 0;
    for (const row of all) { row.hidden = !row.cells[0].textContent.toLowerCase().includes(text); count += !row.hidden; }
    byId("count").textContent = text ? many(count, "table") : "";
  };
  [...list.tHead.rows[0].cells].forEach((cell, column) => {
    const button = make("button", cell.textContent);
    button.type = "button";
    cell.replaceChildren(button);
    button.onclick = () => {
      closeDetails();
      const descending = cell.getAttribute("aria-sort") === "descending" ? 1 : column === 0 && !cell.hasAttribute("aria-sort") ? 1 : -1;
      for (const other of list.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", descending > 0 ? "ascending" : "descending");
      const value = (row) => { const text = row.cells[column].dataset.value; return text === undefined ? row.cells[column].textContent.trim() : text !== "" && !isNaN(text) ? Number(text) : text; };
      all.sort((a, b) => { const [one, two] = [value(a), value(b)]; return descending * (typeof one === "number" && typeof two === "number" ? one - two : String(one).localeCompare(String(two))); });
      body.append(...all);
    };
  });
  for (const row of all) {
    const numbers = lake.growth[row.dataset.place];
    if (!numbers || numbers.length < 6) continue;
    row.classList.add("opens");
    row.tabIndex = 0;
    row.title = "The rows of each version over time";
    const open = () => {
      if (row.nextElementSibling && row.nextElementSibling.className === "growth") { row.nextElementSibling.remove(); return; }
      const cell = make("td"), detail = make("tr", cell, "growth");
      cell.colSpan = row.cells.length;
      row.after(detail);
      drawGrowth(cell, numbers);
    };
    row.onclick = (event) => { if (!event.target.closest("a")) open(); };
    row.onkeydown = (event) => { if (event.key === "Enter" && event.target === row) open(); };
  }
}
function drawGrowth(place, numbers) {
  const times = [], counts = [], versions = [];
  for (let at = 0; at < numbers.length; at += 3) { versions.push(numbers[at]); times.push(numbers[at + 1]); counts.push(numbers[at + 2]); }
  const axis = { stroke: () => colour("muted"), grid: { stroke: () => colour("rule"), width: 1 }, ticks: { stroke: () => colour("rule"), width: 1 }, font: FONT };
  const note = make("p", "Point at the line for its versions.", "muted");
  new uPlot({
    width: Math.min(900, place.closest(".scroll").clientWidth - 20), height: 180, legend: { show: false }, tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
    scales: { y: { range: (u, min, max) => [0, Math.max(1, max * 1.05)] } },
    axes: [{ ...axis, space: 110, values: (u, splits) => splits.map((seconds) => shownTime(seconds).slice(0, 16)) }, { ...axis, size: 80, values: (u, splits) => splits.map((value) => value.toLocaleString("en")) }],
    series: [{}, { stroke: () => colour("accent"), width: 2, paths: uPlot.paths.stepped({ align: 1 }) }],
    cursor: { y: false, drag: { x: true, y: false } },
    hooks: { setCursor: [(u) => { const at = u.cursor.idx; if (at !== null && at !== undefined) note.textContent = `main@${versions[at]}, ${shownTime(times[at])}: ${many(counts[at], "row")}`; }] },
  }, [times, counts], place);
  place.append(note);
}
})();
