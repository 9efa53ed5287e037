"use strict";

// The page is drawn from one view at a time, which the server sends about twice a second. All that comes from
// outside (names of files and programs) becomes text nodes and attributes, never markup. Elements are kept
// from view to view and changed where they differ, so that focus, selection and scrolling stay.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const DEEPEST_INDENT = 8;
const LANES = 14;
const SPAN_ROWS = 60;
const MINUTES = 600;
const SILENCE = 15000;

// ---- the token: out of the address, into this tab

const token = (() => {
  const given = new URLSearchParams(location.search).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname + location.hash);
  }
  return given ?? sessionStorage.getItem("token") ?? "";
})();

// ---- what is wanted, in the address after the #

function readHash() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const file = fields.get("file");
  return {
    file: file && /^\d+-\d+$/.test(file) ? file : null,
    page: Math.max(0, Number.parseInt(fields.get("page") ?? "0", 10) || 0),
    find: (fields.get("find") ?? "").slice(0, 200),
  };
}

function hashOf(wanted) {
  const fields = new URLSearchParams();
  if (wanted.file) fields.set("file", wanted.file);
  if (wanted.page) fields.set("page", wanted.page);
  if (wanted.find) fields.set("find", wanted.find);
  return "#" + fields;
}

let wanted = readHash();
let view = null;
let paused = false;

function want(change, replace = false) {
  const next = hashOf({ ...wanted, ...change });
  if (next === hashOf(wanted)) return;
  if (replace) {
    history.replaceState(null, "", location.pathname + next);
    wantedChanged();
  } else {
    location.hash = next;
  }
}

function wantedChanged() {
  const before = wanted;
  wanted = readHash();
  if (document.activeElement !== $("find")) $("find").value = wanted.find;
  if (before.file !== wanted.file) focusAfter = wanted.file ? "open-heading" : "main";
  if (!paused) connect();
}

let focusAfter = null;
addEventListener("hashchange", wantedChanged);

// ---- the stream

let stream = null;
let samples = [];

function say(state, text) {
  document.documentElement.dataset.link = state;
  setText($("link-text"), text);
}

async function connect() {
  stream?.abort();
  const mine = (stream = new AbortController());
  for (let failures = 0; !mine.signal.aborted; ) {
    const before = Date.now();
    const verdict = await follow(mine);
    if (mine.signal.aborted) return;
    if (verdict.final) return say("lost", verdict.text);
    failures = Date.now() - before > 10000 ? 1 : failures + 1;
    const pause = Math.min(2 ** (failures - 1), 8);
    for (let left = pause; left > 0 && !mine.signal.aborted; left--) {
      say("lost", `${verdict.text}; trying again in ${left} s`);
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
    if (!mine.signal.aborted) say("lost", "trying again");
  }
}

// Server-sent events over fetch: an EventSource cannot send the token but in its address.
async function follow(mine) {
  const fields = new URLSearchParams();
  if (wanted.file) fields.set("file", wanted.file);
  if (wanted.page) fields.set("page", wanted.page);
  if (wanted.find) fields.set("find", wanted.find);
  // Of a server whose machine has gone there is no news at all.
  const silent = new AbortController();
  const listening = AbortSignal.any([mine.signal, silent.signal]);
  let clock = setTimeout(() => silent.abort(), SILENCE);
  try {
    const answer = await fetch("/events?" + fields, {
      headers: { Authorization: "Bearer " + token, Accept: "text/event-stream" },
      cache: "no-store",
      signal: listening,
    });
    if (answer.status === 403) {
      return { final: true, text: "the server does not know this token: it was started anew. Open the address it printed" };
    }
    if (answer.status === 503) return { text: "too many pages are open" };
    if (!answer.ok) return { text: `the server answered ${answer.status}` };
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return { text: "the server has ended" };
      clearTimeout(clock);
      clock = setTimeout(() => silent.abort(), SILENCE);
      text += value;
      const events = text.split("\n\n");
      text = events.pop();
      for (const event of events) take(event);
    }
  } catch {
    return { text: silent.signal.aborted ? "the server says nothing" : "the server does not answer" };
  } finally {
    clearTimeout(clock);
  }
}

function take(event) {
  const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n");
  if (!data || paused) return;
  view = JSON.parse(data);
  samples = view.first ? view.samples : samples.concat(view.samples).slice(-MINUTES);
  say("live", "live");
  draw();
}

// ---- small tools

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function setAttribute(element, name, value) {
  if (value === null || value === undefined) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function makeSvg(tag, attributes = {}) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Makes the children of `parent` those of `items`; an item's element is kept for as long as its key is there.
function reconcile(parent, items, keyOf, create, update) {
  const before = parent.kept ?? new Map();
  const after = new Map();
  const keys = items.map((item) => {
    const key = keyOf(item);
    let unique = key;
    for (let again = 1; after.has(unique); again++) unique = `${key}~${again}`;
    after.set(unique, before.get(unique) ?? null);
    return unique;
  });
  for (const [key, element] of before) if (!after.has(key)) element.remove();
  let place = parent.firstChild;
  items.forEach((item, index) => {
    const key = keys[index];
    const element = after.get(key) ?? create(item);
    after.set(key, element);
    if (element === place) place = place.nextSibling;
    else parent.insertBefore(element, place);
    update(element, item, index);
  });
  parent.kept = after;
}

const plural = (count, one, many) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 0.001) return `${Math.max(0, Math.round(seconds * 1e6))} µs`;
  if (seconds < 0.1) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const [large, small, part] = seconds < 3600 ? ["min", "s", 60] : seconds < 86400 ? ["h", "min", 3600] : ["d", "h", 86400];
  const rest = Math.floor((seconds % part) / (part === 86400 ? 3600 : part / 60));
  return `${Math.floor(seconds / part)} ${large}` + (rest ? ` ${rest} ${small}` : "");
}

const KINDS = { posix: "POSIX", ofd: "OFD", flock: "flock", access: "access", lease: "lease", delegation: "delegation" };

const kindOf = (lock) => `${lock.type} ${KINDS[lock.kind] ?? "other"}`;

function rangeOf(lock) {
  if (lock.kind === "flock" || (lock.start === 0 && lock.end === null)) return "whole file";
  if (lock.end === null) return `from ${lock.start}`;
  return lock.start === lock.end ? `byte ${lock.start}` : `${lock.start}–${lock.end}`;
}

const commands = new Map();

function commandOf(lock) {
  if (lock.command) commands.set(lock.pid, lock.command);
  if (commands.size > 5000) commands.delete(commands.keys().next().value);
  return lock.command ?? commands.get(lock.pid) ?? (lock.pid ? "ended" : "not visible here");
}

const whoOf = (lock) => (lock.pid ? `${commandOf(lock)} (${lock.pid})` : commandOf(lock));

function nameOf(file) {
  if (!file.path) return `inode ${file.inode ?? file.id}`;
  const mount = view.mount.mountpoint;
  return file.path.startsWith(mount + "/") ? file.path.slice(mount.length + 1) : file.path;
}

// ---- drawing

function draw() {
  const { mount, counts } = view;
  setText($("mount"), `${mount.mountpoint} · shows ${mount.source}` + (mount.mandatory ? " · mandatory locks" : ""));
  const sign = view.deadlocks_in_all ? "DEADLOCK · " : counts.waiting ? `${counts.waiting} wait · ` : "";
  document.title = `${sign}${mount.mountpoint} · Lockkeeper`;
  drawBanner();
  drawNumbers();
  const open = Boolean(view.file);
  $("overview").hidden = open;
  $("open").hidden = !open;
  if (open) drawOpen();
  else drawOverview();
  if (focusAfter) {
    $(focusAfter).focus({ preventScroll: true });
    scrollTo(0, 0);
    focusAfter = null;
  }
}

let bannerSaid = "";

// A live region: it changes only when the deadlocks do, and holds no clock.
function drawBanner() {
  const banner = $("banner");
  const { deadlocks, deadlocks_in_all: inAll } = view;
  const said = JSON.stringify([inAll, deadlocks.map((circle) => [circle.more, circle.steps.map((s) => [s.owner, s.pid, s.file])])]);
  if (said === bannerSaid) return;
  bannerSaid = said;
  banner.replaceChildren();
  if (!inAll) return;
  banner.append(make("h2", "", inAll === 1 ? "Deadlock" : `${inAll} deadlocks`));
  for (const circle of deadlocks) {
    const list = make("ol");
    circle.steps.forEach((step, index) => {
      const next = circle.steps[(index + 1) % circle.steps.length];
      const link = make("a", "", nameOf({ path: step.path, id: step.file }));
      link.href = hashOf({ file: step.file });
      const other = circle.more && index + 1 === circle.steps.length ? "another of the circle" : whoOf(next);
      list.append(make("li", "", make("strong", "", whoOf(step)), ` waits for a ${kindOf(step)} lock on `, link, ", in the way is ", make("strong", "", other)));
    });
    banner.append(list);
    if (circle.more) banner.append(make("p", "", `and ${plural(circle.more, "more wait", "more waits")} in this circle`));
  }
  if (inAll > deadlocks.length) banner.append(make("p", "", `and ${plural(inAll - deadlocks.length, "more", "more")}`));
  banner.append(make("p", "", "None of them will ever get on by itself. Ending one of these processes, or interrupting its wait, frees the others."));
}

const NUMBERS = [
  { key: "waiting", name: "Waiting now", unit: "" },
  { key: "acquisitions", name: "Granted", unit: "/s" },
  { key: "contended", name: "Had to wait", unit: "/s" },
  { key: "wake_ups", name: "Wake-ups", unit: "/s" },
];

function drawNumbers() {
  const totals = { waiting: null, ...view.totals };
  reconcile($("numbers"), NUMBERS, (number) => number.key, createNumber, (element, number) => {
    const values = samples.map((sample) => sample[number.key]);
    const now = number.key === "waiting" ? view.counts.waiting : (values.at(-1) ?? 0);
    const most = Math.max(now, ...values);
    const { parts } = element;
    setText(parts.now, now.toLocaleString("en") + number.unit);
    const note = number.key === "waiting"
      ? view.counts.oldest === null ? "nobody waits" : `the longest for ${duration(view.counts.oldest)}`
      : `${(totals[number.key] ?? 0).toLocaleString("en")} since the start`;
    setText(parts.note, note);
    setText(parts.most, `most ${most.toLocaleString("en")}${number.unit}`);
    setAttribute(parts.svg, "aria-label", `${number.name} over the last ten minutes: now ${now}, most ${most}`);
    const key = `${values.length}:${samples.at(-1)?.time}`;
    if (element.drawn === key) return;
    element.drawn = key;
    const x = (index) => MINUTES - values.length + index + 1;
    const y = (value) => (most ? 46 - (44 * value) / most : 46).toFixed(1);
    const line = values.map((value, index) => `${index ? "L" : "M"}${x(index)} ${y(value)}`).join("");
    parts.stroke.setAttribute("d", line);
    parts.area.setAttribute("d", line && `${line}L${MINUTES} 48L${x(0)} 48Z`);
  });
}

function createNumber(number) {
  const svg = makeSvg("svg", { viewBox: `0 0 ${MINUTES} 48`, preserveAspectRatio: "none", role: "img" });
  const area = makeSvg("path", { class: "area" });
  const stroke = makeSvg("path", { class: "stroke" });
  svg.append(area, stroke);
  const now = make("p", "now");
  const note = make("p", "note");
  const most = make("span");
  const axis = make("p", "axis", make("span", "", "10 min ago"), most, make("span", "", "now"));
  const element = make("div", "number", make("p", "", number.name), now, note, svg, axis);
  element.parts = { svg, area, stroke, now, note, most };
  return element;
}

function factsOf(file) {
  const facts = [plural(file.locks, "lock held", "locks held"), file.waiters === 1 ? "1 waits" : `${file.waiters.toLocaleString("en")} wait`];
  if (file.oldest !== null) facts.push(`the longest for ${duration(file.oldest)}`);
  if (file.deleted) facts.push("unlinked");
  return facts.join(" · ");
}

function drawOverview() {
  const { counts, files } = view;
  const shown = files.filter((file) => file.rows.length);
  const others = files.filter((file) => !file.rows.length);
  const held = `${plural(counts.locks, "lock", "locks")} on ${plural(counts.files, "file", "files")}`;
  setText($("found"), wanted.find ? `${counts.found.toLocaleString("en")} of ${plural(counts.files, "file", "files")} with “${wanted.find}”` : held);
  $("nothing").hidden = files.length > 0;
  setText($("nothing"), wanted.find ? `No file, program or process here matches “${wanted.find}”.` : "Nothing is locked on this mount.");
  reconcile($("cards"), shown, (file) => file.id, createCard, updateCard);
  $("others").hidden = !others.length;
  setText($("others-heading"), `More files${counts.found > files.length ? ` (${(counts.found - files.length).toLocaleString("en")} not shown; find narrows them)` : ""}`);
  reconcile($("rest"), others, (file) => file.id, createOther, (row, file) => {
    setText(row.link, nameOf(file));
    const cells = [file.waiters.toLocaleString("en"), file.locks.toLocaleString("en"), duration(file.oldest), file.counters.acquisitions.toLocaleString("en")];
    cells.forEach((text, index) => setText(row.cells[index + 1], text));
  });
}

function linkTo(file) {
  const link = make("a");
  link.href = hashOf({ file: file.id, find: wanted.find });
  return link;
}

function createCard(file) {
  const link = linkTo(file);
  const facts = make("p", "facts");
  const tree = createTree();
  const more = linkTo(file);
  const element = make("article", "card", make("h3", "", link), facts, tree, make("p", "more", more));
  element.parts = { link, facts, tree, more };
  return element;
}

function updateCard(element, file) {
  const { link, facts, tree, more } = element.parts;
  for (const part of [link, more]) setAttribute(part, "href", hashOf({ file: file.id, find: wanted.find }));
  setText(link, nameOf(file));
  setText(facts, factsOf(file));
  element.classList.toggle("deadlock", file.deadlock);
  updateTree(tree, file.rows, `Locks of ${nameOf(file)}`);
  const hidden = file.rows_in_all - file.rows.length;
  more.parentElement.hidden = hidden === 0;
  setText(more, `${plural(hidden, "more row", "more rows")}, and the time line`);
}

function createOther(file) {
  const link = linkTo(file);
  const row = make("tr", "", make("td", "", link), make("td"), make("td"), make("td"), make("td"));
  row.link = link;
  return row;
}

function drawOpen() {
  const { file, page, pages, timeline } = view.file;
  const shown = file ?? lastOpen(view.file.id);
  setText($("open-heading"), shown ? nameOf(shown) : "This file");
  const facts = file ? [factsOf(file)] : ["nothing is locked here now"];
  if (file) {
    const { counters } = file;
    facts.push(`${counters.acquisitions.toLocaleString("en")} granted so far, ${counters.contended.toLocaleString("en")} after a wait`);
    facts.push(`inode ${file.inode}`);
  }
  setText($("facts"), facts.join(" · "));
  drawTimeline(timeline);
  if (!$("tree").firstChild) $("tree").append(createTree());
  updateTree($("tree").firstChild, file?.rows ?? [], "Who holds, who waits");
  const all = file?.rows_in_all ?? 0;
  const first = page * 200;
  setText($("rows-shown"), pages > 1 ? `rows ${(first + 1).toLocaleString("en")} to ${Math.min(first + 200, all).toLocaleString("en")} of ${all.toLocaleString("en")}` : all ? "" : "nobody");
  $("pages").hidden = pages <= 1;
  setText($("page-text"), `page ${page + 1} of ${pages}`);
  $("first-page").disabled = $("previous-page").disabled = page === 0;
  $("next-page").disabled = $("last-page").disabled = page + 1 >= pages;
}

const opened = {};

// What a file was called when something was last locked there.
function lastOpen(id) {
  if (view.file.file) opened[id] = { path: view.file.file.path, inode: view.file.file.inode, id };
  return opened[id];
}

// ---- trees: rows in order, each with its level; the keys are those of a tree

function createTree() {
  const tree = make("ul", "tree");
  tree.setAttribute("role", "tree");
  tree.folded = new Set();
  tree.addEventListener("keydown", treeKey);
  tree.addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (!row) return;
    setCurrent(tree, row);
    if (event.target.closest(".twist")) fold(tree, row, !tree.folded.has(row.key));
  });
  return tree;
}

const rowKey = (row) => `${row.is === "held" ? "h" : "w"}${row.kind}.${row.owner}.${row.start}.${row.end}.${row.type}`;

function updateTree(tree, rows, label) {
  setAttribute(tree, "aria-label", label);
  tree.rows = rows;
  // A later page may begin deep in the tree: nothing is above its first rows here.
  tree.base = rows.reduce((least, row) => Math.min(least, row.depth), Infinity);
  reconcile(tree, rows, rowKey, createRow, (element, row, index) => {
    element.key = rowKey(row);
    element.level = row.depth;
    const beneathIsShown = (rows[index + 1]?.depth ?? 0) > row.depth;
    updateRow(element, row, row.depth - tree.base, beneathIsShown, tree.folded.has(element.key));
  });
  hideFolded(tree);
  if (!tree.current?.isConnected || tree.current.hidden) setCurrent(tree, visibleRows(tree)[0]);
}

function createRow() {
  const twist = make("span", "twist");
  twist.setAttribute("aria-hidden", "true");
  const state = make("span", "state");
  const command = make("span");
  const pid = make("span", "pid");
  const name = make("span", "name", command, " ", pid);
  const what = make("span", "what");
  const range = make("span", "range");
  const seconds = make("span", "seconds");
  const note = make("span", "note");
  const element = make("li", "row", make("span", "who", twist, state, name), what, range, seconds, note);
  element.setAttribute("role", "treeitem");
  element.tabIndex = -1;
  element.parts = { twist, state, command, pid, what, range, seconds, note };
  return element;
}

const STATES = { held: "holds", breaking: "holds", waits: "waits", woken: "woken" };

function updateRow(element, row, indent, foldable, folded) {
  const { parts } = element;
  setAttribute(element, "aria-level", row.depth + 1);
  setAttribute(element, "aria-expanded", foldable ? String(!folded) : null);
  setAttribute(element, "data-is", row.is);
  setAttribute(element, "data-pid", row.pid);
  setAttribute(element, "data-depth", row.depth);
  setAttribute(element, "data-deadlock", row.deadlock);
  const level = String(Math.min(indent, DEEPEST_INDENT));
  if (element.style.getPropertyValue("--level") !== level) element.style.setProperty("--level", level);
  setText(parts.twist, foldable ? (folded ? "▶" : "▼") : "");
  setText(parts.state, STATES[row.is] ?? row.is);
  setText(parts.command, commandOf(row));
  setText(parts.pid, row.pid ? String(row.pid) : "");
  setText(parts.what, kindOf(row));
  setText(parts.range, rangeOf(row));
  setText(parts.seconds, duration(row.seconds));
  const notes = [];
  if (row.deadlock) notes.push("in a deadlock");
  if (row.is === "breaking") notes.push("was told to give it up");
  if (row.beneath && (row.depth === 0 || folded)) notes.push(`${row.beneath.toLocaleString("en")} ${row.beneath === 1 ? "waits" : "wait"} beneath`);
  if (row.depth > DEEPEST_INDENT || indent < row.depth) notes.push(`level ${row.depth}`);
  if (row.overtaken) notes.push(`overtaken ${plural(row.overtaken, "time", "times")}`);
  setText(parts.note, notes.join(" · "));
}

function fold(tree, row, folded) {
  if (folded) tree.folded.add(row.key);
  else tree.folded.delete(row.key);
  updateTree(tree, tree.rows, tree.getAttribute("aria-label"));
}

function hideFolded(tree) {
  let foldedAt = Infinity;
  for (const row of tree.children) {
    if (row.level <= foldedAt) foldedAt = Infinity;
    const hide = row.level > foldedAt;
    if (row.hidden !== hide) row.hidden = hide;
    if (!hide && foldedAt === Infinity && row.hasAttribute("aria-expanded") && tree.folded.has(row.key)) foldedAt = row.level;
  }
}

const visibleRows = (tree) => [...tree.children].filter((row) => !row.hidden);

function setCurrent(tree, row) {
  if (tree.current && tree.current !== row) tree.current.tabIndex = -1;
  tree.current = row;
  if (row) row.tabIndex = 0;
}

function treeKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const tree = event.currentTarget;
  const rows = visibleRows(tree);
  const at = rows.indexOf(tree.current);
  const row = rows[at];
  if (!row) return;
  const expanded = row.getAttribute("aria-expanded");
  let to = null;
  if (event.key === "ArrowDown") to = rows[at + 1];
  else if (event.key === "ArrowUp") to = rows[at - 1];
  else if (event.key === "Home") to = rows[0];
  else if (event.key === "End") to = rows.at(-1);
  else if (event.key === "ArrowRight") {
    if (expanded === "false") fold(tree, row, false);
    else if (expanded === "true") to = rows[at + 1];
  } else if (event.key === "ArrowLeft") {
    if (expanded === "true") fold(tree, row, true);
    else to = rows.slice(0, at).reverse().find((above) => above.level < row.level);
  } else if (event.key === "Enter" || event.key === " ") {
    if (expanded !== null) fold(tree, row, expanded === "true");
  } else return;
  event.preventDefault();
  if (to) {
    setCurrent(tree, to);
    to.focus();
  }
}

// ---- the time line: a lane an owner

function drawTimeline(timeline) {
  const box = $("timeline");
  if (!timeline) return;
  if (!box.firstChild) {
    box.lanes = make("div");
    const axis = make("p", "axis", make("span"), make("span"));
    box.axis = axis;
    box.note = make("p", "note");
    box.append(box.lanes, make("div", "lane", make("span"), axis), box.note);
  }
  const { now, spans } = timeline;
  let from = now - Number($("span").value);
  // Of a busy file the server keeps no more than it can send.
  const ended = spans.filter((span) => span.to !== null);
  const cut = ended.length >= 400 && ended[0].to > from;
  if (cut) from = ended[0].to;
  const lanes = new Map();
  for (const span of spans) {
    if ((span.to ?? now) < from) continue;
    const key = `${span.kind === "flock"}:${span.owner}`;
    if (!lanes.has(key)) lanes.set(key, { key, spans: [], first: span.from, goesOn: false, holds: false, lock: span });
    const lane = lanes.get(key);
    lane.spans.push(span);
    lane.lock = span;
    lane.first = Math.min(lane.first, span.from);
    lane.goesOn ||= span.to === null;
    lane.holds ||= span.to === null && span.what === "held";
  }
  const ordered = [...lanes.values()].sort((a, b) => b.holds - a.holds || b.goesOn - a.goesOn || a.first - b.first);
  const width = now - from || 1;
  const x = (time) => Math.max(0, Math.min(1000, ((time - from) / width) * 1000));
  reconcile(box.lanes, ordered.slice(0, LANES), (lane) => lane.key, createLane, (element, lane) => {
    setText(element.label, whoOf(lane.lock));
    setAttribute(element.label, "title", whoOf(lane.lock));
    drawLane(element.svg, lane, x, now);
  });
  setText(box.axis.firstChild, `${duration(now - from)} ago`);
  setText(box.axis.lastChild, "now");
  const notes = [];
  if (!ordered.length) notes.push("Nothing happened here in this time. It is recorded while this page is open.");
  if (ordered.length > LANES) notes.push(`${plural(ordered.length - LANES, "more owner", "more owners")} not drawn.`);
  if (cut) notes.push("So much happens here that earlier than this is not kept.");
  setText(box.note, notes.join(" "));
  if ($("spans").open) drawSpans(spans, now, from);
}

function createLane() {
  const label = make("span", "label");
  const svg = makeSvg("svg", { viewBox: "0 0 1000 20", preserveAspectRatio: "none", role: "img" });
  const element = make("div", "lane", label, svg);
  element.label = label;
  element.svg = svg;
  return element;
}

function drawLane(svg, lane, x, now) {
  const shapes = [];
  let held = 0;
  let waited = 0;
  for (const span of lane.spans) {
    const begin = x(span.from);
    const end = Math.max(x(span.to ?? now), begin + 1.5);
    if (span.what === "held") {
      held++;
      shapes.push(makeSvg("rect", { class: "held", x: begin.toFixed(1), y: 3, width: (end - begin).toFixed(1), height: 14 }));
    } else {
      waited++;
      shapes.push(makeSvg("line", { class: span.what, x1: begin.toFixed(1), x2: end.toFixed(1), y1: 10, y2: 10 }));
    }
  }
  svg.replaceChildren(...shapes);
  setAttribute(svg, "aria-label", `${plural(held, "lock", "locks")}, ${plural(waited, "wait", "waits")}`);
}

const WHATS = { held: "held", waits: "waits", granted: "waited, then granted", refused: "waited, then refused", cancelled: "waited, then gave up" };

function drawSpans(spans, now, from) {
  const shown = spans.filter((span) => (span.to ?? now) >= from).slice(-SPAN_ROWS).reverse();
  const key = (span) => `${span.owner}.${span.from}.${span.what}.${span.start}`;
  reconcile($("span-rows"), shown, key, () => make("tr", "", make("td"), make("td"), make("td"), make("td"), make("td")), (row, span) => {
    const texts = [whoOf(span), WHATS[span.what] ?? span.what, `${kindOf(span)}, ${rangeOf(span)}`, `${duration(now - span.from)} ago`,
      span.to === null ? `${duration(now - span.from)}, and goes on` : duration(span.to - span.from)];
    texts.forEach((text, index) => setText(row.cells[index], text));
  });
}

// ---- what the user does

let typing = 0;
$("find").value = wanted.find;
$("find").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => want({ find: $("find").value.trim(), page: 0 }, true), 200);
});
$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(typing);
  want({ find: $("find").value.trim(), page: 0 }, true);
});

$("back").addEventListener("click", (event) => {
  event.preventDefault();
  want({ file: null, page: 0 });
});

for (const [id, to] of [
  ["first-page", () => 0],
  ["previous-page", () => view.file.page - 1],
  ["next-page", () => view.file.page + 1],
  ["last-page", () => view.file.pages - 1],
]) {
  $(id).addEventListener("click", () => view?.file && want({ page: Math.max(0, to()) }, true));
}

$("span").addEventListener("change", () => view && draw());
$("spans").addEventListener("toggle", () => view && draw());

$("pause").addEventListener("click", () => {
  paused = !paused;
  setAttribute($("pause"), "aria-pressed", paused);
  setText($("pause"), paused ? "Resume" : "Pause");
  if (!paused) return connect();
  stream?.abort();
  say("paused", `paused at ${new Date().toLocaleTimeString()}`);
});

addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const field = event.target.matches?.("input, select, textarea");
  if (event.key === "/" && !field) {
    event.preventDefault();
    $("find").focus();
  } else if (event.key === "Escape") {
    if (event.target === $("find") && $("find").value) return;
    if (wanted.file) want({ file: null, page: 0 });
    else if (field) $("main").focus();
  }
});

const dark = matchMedia("(prefers-color-scheme: dark)");

function theme() {
  return document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
}

function showTheme() {
  setText($("theme"), theme() === "dark" ? "Light" : "Dark");
  setAttribute($("theme"), "aria-label", theme() === "dark" ? "Use light colours" : "Use dark colours");
}

const chosen = localStorage.getItem("theme");
if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
dark.addEventListener("change", showTheme);
$("theme").addEventListener("click", () => {
  const next = theme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("theme", next);
  showTheme();
});
showTheme();

connect();
