"use strict";
const PAUSE_MS = 2000;
const TIMEOUT_MS = 10000;
const SVG = "http://www.w3.org/2000/svg";
const find = (id) => document.getElementById(id);

// Everything that is shown is set as text, so nothing that a client chooses becomes a part of the page.
function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function time(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  return bytes < 1024 ** 3 ? `${Math.round(bytes / 1024 ** 2)} MiB` : `${(bytes / 1024 ** 3).toFixed(1)} GiB`;
}

function age(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60]];
  for (const [unit, length] of units) {
    if (seconds >= 2 * length) return `${Math.floor(seconds / length)} ${unit}`;
  }
  return `${seconds} s`;
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

function perSecond(rate) {
  return `${rate < 10 ? rate.toFixed(2) : rate.toFixed(0)} a second`;
}

// The end of an axis: a number that begins with 1, 2 or 5.
function rounded(most) {
  if (most <= 0) return 1;
  const decade = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((step) => step * decade).find((end) => end >= most);
}

// A line for each run of values: there is none where nothing was measured. One value alone is a point.
function path(values, top) {
  const last = Math.max(values.length - 1, 1);
  let isOpen = false;
  const parts = values.map((value, at) => {
    if (value === null) {
      isOpen = false;
      return "";
    }
    const place = `${((at * 100) / last).toFixed(2)},${(29 - (value / top) * 28).toFixed(2)}`;
    const part = isOpen ? `L${place}` : `M${place}h0`;
    isOpen = true;
    return part;
  });
  return parts.join("");
}

// Lines from the oldest interval on the left to the newest on the right, with both axes. `shown` writes a value with its unit.
function chart(caption, shown, lines, seconds) {
  const top = rounded(Math.max(...lines.flatMap((line) => line.values.map((value) => value ?? 0)), 0));
  const figure = element("figure");
  const text = element("figcaption", `${caption} `);
  for (const { name, className, last } of lines) {
    text.append(element("span", `${name} ${last} `, className));
  }
  const image = document.createElementNS(SVG, "svg");
  image.setAttribute("viewBox", "0 0 100 30");
  image.setAttribute("preserveAspectRatio", "none");
  image.setAttribute("role", "img");
  image.setAttribute("aria-label", caption);
  for (const { values, className } of lines) {
    const line = document.createElementNS(SVG, "path");
    line.setAttribute("d", path(values, top));
    line.setAttribute("class", className);
    image.append(line);
  }
  const upright = element("div", undefined, "upright");
  upright.append(element("span", shown(top)), element("span", "0"));
  const level = element("div", undefined, "level");
  const intervals = Math.max(...lines.map((line) => line.values.length), 0);
  level.append(element("span", `${age(intervals * seconds)} ago`), element("span", "now"));
  const plot = element("div", undefined, "plot");
  plot.append(upright, image, level);
  figure.append(text, plot);
  return figure;
}

const CLASSES = ["one", "two", "three"];

function times(caption, all, seconds) {
  const lines = ["p50", "p95", "p99"].map((name, at) => {
    const values = all.map((of) => of[`${name}_ms`]);
    const known = values.filter((value) => value !== null);
    return { name, className: CLASSES[at], values, last: time(known.at(-1)) };
  });
  return chart(caption, time, lines, seconds);
}

function pool(name, now, status) {
  const seconds = status.interval_s;
  const intervals = status.intervals.map((interval) => interval.pools[name]).filter(Boolean);
  const all = (key) => sum(intervals.map((interval) => interval[key]));
  const recent = `last ${age(intervals.length * seconds)}`;
  const mean = (key) => perSecond(intervals.length ? all(key) / (intervals.length * seconds) : 0);
  const latest = (key) => perSecond((intervals.at(-1)?.[key] ?? 0) / seconds);
  const card = element("article");
  card.dataset.pool = name;
  card.append(element("h3", name));
  const facts = [
    ["ready", `${now.hot + now.paused} of ${now.size} (${now.hot} thawed)${now.min < now.max ? `, ${now.min} to ${now.max}` : ""}`],
    ["running a program", now.in_use],
    ["held by open sessions", now.sessions],
    ["being made", now.making],
    ["replacing one takes", time(now.making_ms === null ? null : now.delay_ms + now.making_ms)],
    ["calls, now", latest("calls")],
    [`calls, ${recent}`, mean("calls")],
    ["cells, now", latest("cells")],
    [`cells, ${recent}`, mean("cells")],
    [`found one ready, ${recent}`, all("starts") ? `${Math.round((all("ready_starts") / all("starts")) * 100)} %` : "–"],
    ["taken so far", ["hot", "warm", "queued", "cold"].map((start) => `${now.starts[start] ?? 0} ${start}`).join(", ")],
    ["so far", `${now.cells} cells, ${now.sessions_opened} sessions opened`],
    ["memory that waits", size(now.memory_bytes)],
  ];
  const list = element("dl");
  for (const [term, text] of facts) list.append(element("dt", term), element("dd", text));
  card.append(list);
  if (now.last_error) card.append(element("p", now.last_error, "bad"));
  card.append(times("time of calls", intervals, seconds));
  if (all("cells")) card.append(times("time of cells", intervals.map((interval) => interval.cell_times), seconds));
  const rates = [["calls", "calls"], ["cells", "cells"], ["sessions opened", "sessions_opened"]];
  const lines = rates.map(([name, key], at) => {
    const values = intervals.map((interval) => interval[key] / seconds);
    return { name, className: CLASSES[at], values, last: (values.at(-1) ?? 0).toFixed(2) };
  });
  card.append(chart("each second", perSecond, lines, seconds));
  return card;
}

function show(status) {
  find("about").textContent = `${status.version}, ${status.engine} engine, up ${age(status.uptime_s)}`;
  const failing = Object.entries(status.pools).filter(([, now]) => now.last_error).map(([name]) => name);
  const state = find("state");
  const [first, ...others] = status.not_ready.map((reason) => `Not ready: ${reason}`);
  state.textContent = first ?? (failing.length ? `No new sandbox can be made for ${failing.join(", ")}` : "All pools make sandboxes");
  state.className = first || failing.length ? "bad" : "good";
  find("wrong").replaceChildren(...[...others, ...status.warnings].map((text) => element("p", text, "bad")));
  const numbers = [
    ["requests run", status.running],
    ["wait for their turn", status.waiting],
    ["sandboxes leaving", status.leaving],
    ["sessions open", status.sessions.open],
    ["of them run a cell", status.sessions.running],
    ["of them frozen", status.sessions.frozen],
    ["memory of sessions", size(status.sessions.memory_bytes)],
    ...(status.templates === null ? [] : [
      ["templates", status.templates],
      ["memory of templates", size(status.template_bytes)],
    ]),
  ];
  find("numbers").replaceChildren(
    ...numbers.map(([name, value]) => {
      const card = element("div");
      card.append(element("b", value), element("span", name));
      return card;
    }),
  );
  const queue = status.intervals.map((interval) => interval.queue);
  find("queue").replaceChildren(chart("requests in the queue", String, [{ name: "", className: "one", values: queue, last: status.waiting }], status.interval_s));
  find("pools").replaceChildren(...Object.entries(status.pools).map(([name, now]) => pool(name, now, status)));
  find("clients-section").hidden = !status.clients.length;
  find("clients").replaceChildren(
    ...status.clients.map((client) => {
      const row = element("tr");
      row.append(element("td", client.name), element("td", client.running), element("td", client.waiting));
      return row;
    }),
  );
  find("programs-section").hidden = !status.programs.length;
  find("programs").replaceChildren(
    ...status.programs.map((program) => {
      const row = element("tr");
      for (const text of [program.pool, program.client, program.start, time(program.ms)]) row.append(element("td", text));
      return row;
    }),
  );
  find("failures-section").hidden = !status.failures.length;
  find("failures").replaceChildren(
    ...status.failures.map((failure) => {
      const item = element("li");
      const times = failure.count > 1 ? ` (${failure.count} times)` : "";
      item.append(element("time", `${failure.at} `), element("b", `${failure.pool}: `), `${failure.message}${times}. `);
      item.append(element("small", failure.advice));
      return item;
    }),
  );
}

async function update() {
  try {
    const answer = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (!answer.ok) throw new Error(`the server answered with ${answer.status}`);
    show(await answer.json());
  } catch (error) {
    find("state").textContent = `Not up to date: ${error.message}`;
    find("state").className = "bad";
  }
  setTimeout(update, PAUSE_MS);
}

update();
