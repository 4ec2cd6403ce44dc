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

// Lines from the oldest interval on the left to the newest on the right. Intervals without a value are left out.
function chart(caption, lines) {
  const top = Math.max(...lines.flatMap((line) => line.values.map((value) => value ?? 0)), 0);
  const figure = element("figure");
  const image = document.createElementNS(SVG, "svg");
  image.setAttribute("viewBox", "0 0 100 30");
  image.setAttribute("preserveAspectRatio", "none");
  image.setAttribute("role", "img");
  image.setAttribute("aria-label", caption);
  for (const { values, className } of lines) {
    const last = Math.max(values.length - 1, 1);
    const points = values
      .map((value, at) => (value === null ? null : `${(at * 100) / last},${29 - (top ? (value / top) * 28 : 0)}`))
      .filter((point) => point !== null);
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("points", points.join(" "));
    line.setAttribute("class", className);
    image.append(line);
  }
  const text = element("figcaption", `${caption} `);
  for (const { name, className, last } of lines) {
    text.append(element("span", `${name} ${last} `, className));
  }
  figure.append(image, text);
  return figure;
}

function pool(name, now, status) {
  const seconds = status.interval_s;
  const intervals = status.intervals.map((interval) => interval.pools[name]).filter(Boolean);
  const calls = sum(intervals.map((interval) => interval.calls));
  const ready = sum(intervals.map((interval) => interval.ready_starts));
  const rate = intervals.length ? calls / (intervals.length * seconds) : 0;
  const card = element("article");
  card.dataset.pool = name;
  card.append(element("h3", name));
  const facts = [
    ["ready", `${now.hot + now.paused} of ${now.size} (${now.hot} thawed)${now.min < now.max ? `, ${now.min} to ${now.max}` : ""}`],
    ["in use, made now", `${now.in_use}, ${now.making}`],
    ["making one takes", time(now.refill_ms)],
    ["calls", `${rate.toFixed(2)} a second`],
    ["found one ready", calls ? `${Math.round((ready / calls) * 100)} %` : "–"],
    ["starts so far", ["hot", "warm", "queued", "cold"].map((start) => `${now.starts[start] ?? 0} ${start}`).join(", ")],
    ["memory that waits", size(now.memory_bytes)],
  ];
  const list = element("dl");
  for (const [term, text] of facts) list.append(element("dt", term), element("dd", text));
  card.append(list);
  if (now.last_error) card.append(element("p", now.last_error, "bad"));
  const lines = [["p50", "one"], ["p95", "two"], ["p99", "three"]].map(([name, className]) => {
    const values = intervals.map((interval) => interval[`${name}_ms`]);
    const known = values.filter((value) => value !== null);
    return { name, className, values, last: time(known.at(-1)) };
  });
  card.append(chart("time of calls", lines));
  const rates = intervals.map((interval) => interval.calls / seconds);
  const last = rates.length ? rates.at(-1).toFixed(1) : "–";
  card.append(chart("calls a second", [{ name: "", className: "one", values: rates, last }]));
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
    ["run", status.running],
    ["wait for their turn", status.waiting],
    ["sandboxes leaving", status.leaving],
    ["sessions open", status.sessions.open],
    ["of them frozen", status.sessions.frozen],
    ["memory of sessions", size(status.sessions.memory_bytes)],
  ];
  find("numbers").replaceChildren(
    ...numbers.map(([name, value]) => {
      const card = element("div");
      card.append(element("b", value), element("span", name));
      return card;
    }),
  );
  const queue = status.intervals.map((interval) => interval.queue);
  find("queue").replaceChildren(chart("requests in the queue", [{ name: "", className: "one", values: queue, last: status.waiting }]));
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
