"use strict";
// Checks the text of a flow while one types, and shows tapped events as they arrive. Without this
// file the buttons of both forms do the same.

const CHECK_MS = 400;
const MOST_ROWS = 200;

function made(tag, text, parent) {
  const node = document.createElement(tag);
  node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function checkWhileTyping(form) {
  const text = form.querySelector("#text");
  const result = form.querySelector("#problems");
  let timer = 0;
  let number = 0;
  async function check() {
    const own = ++number;
    const fields = new URLSearchParams({ text: text.value, csrf: form.elements.csrf.value });
    const answer = await fetch(form.dataset.check, { method: "POST", body: fields });
    if (own !== number) return;
    result.replaceChildren();
    if (!answer.ok) {
      made("p", `The text could not be checked: ${answer.status} ${answer.statusText}`, result);
      return;
    }
    const found = await answer.json();
    const many = found.problems.length;
    made("h2", many ? `${many} problem${many === 1 ? "" : "s"}` : "The text is valid", result);
    const list = made("ul", "", result);
    list.className = "problems";
    for (const problem of found.problems) {
      const item = made("li", "", list);
      if (problem.line) {
        const jump = made("a", `line ${problem.line}`, item);
        jump.href = "#text";
        jump.addEventListener("click", () => select(text, problem.line));
        item.append(" ");
      }
      made("code", problem.path, item);
      item.append(` ${problem.message}`);
    }
    for (const sentence of found.promises) made("li", sentence, list);
  }
  text.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => check().catch((error) => {
      result.replaceChildren(made("p", `The text could not be checked: ${error.message}`));
    }), CHECK_MS);
  });
}

function select(text, line) {
  const lines = text.value.split("\n");
  const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
  text.focus();
  text.setSelectionRange(start, start + (lines[line - 1] || "").length);
}

function tap(form) {
  const rows = document.querySelector(".tapped tbody");
  const status = document.querySelector(".status");
  const stop = form.querySelector(".stop");
  let events = null;
  function end(why) {
    if (events) events.close();
    events = null;
    stop.hidden = true;
    status.textContent = why;
  }
  form.addEventListener("submit", (submitted) => {
    submitted.preventDefault();
    end("");
    rows.replaceChildren();
    const asked = new URLSearchParams({ at: form.elements.at.value, where: form.elements.where.value });
    let count = 0;
    events = new EventSource(`${form.dataset.events}?${asked}`);
    stop.hidden = false;
    status.textContent = "Waiting for events.";
    events.onmessage = (message) => {
      show(rows, JSON.parse(message.data));
      while (rows.children.length > MOST_ROWS) rows.lastChild.remove();
      status.textContent = `${++count} events.`;
    };
    events.addEventListener("end", (message) => end(JSON.parse(message.data)));
    events.onerror = () => end(count ? `${count} events; the connection ended.` : "The tap failed.");
  });
  stop.addEventListener("click", () => end("Stopped."));
}

function show(rows, event) {
  const row = document.createElement("tr");
  rows.prepend(row);
  if (event.lost) {
    made("td", event.lost, row).colSpan = 4;
    return;
  }
  made("td", event.time, row).className = "lane";
  made("td", event.host, row);
  made("td", event.end, row);
  const details = made("details", "", made("td", "", row));
  made("summary", event.body || event.line, details);
  made("pre", event.whole, details);
}

document.addEventListener("DOMContentLoaded", () => {
  for (const form of document.querySelectorAll("form.edit")) checkWhileTyping(form);
  for (const form of document.querySelectorAll("form.tap")) tap(form);
});
