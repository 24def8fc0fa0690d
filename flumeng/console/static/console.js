"use strict";
// Shows the content again when the server tells of a new picture, moments also in the reader's zone,
// and "/" goes to the search. Everything on a page can be read without this file.

const PAUSE_MS = 5000;
let shown = 0;

function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (!isNaN(moment)) time.title = moment.toLocaleString();
  }
}

function refresh() {
  const main = document.getElementById("main");
  if (document.hidden || main.dataset.still !== undefined || Date.now() - shown < 1000) return;
  shown = Date.now();
  htmx.ajax("GET", location.href, { target: "#main", select: "#main", swap: "outerMorph" });
}

// A browser opens six connections to a host in all: only the page that is seen keeps one.
let events = null;

function follow() {
  if (events || document.hidden) return;
  events = new EventSource("/api/v1/events");
  events.addEventListener("picture", refresh);
  events.onerror = () => {
    document.body.classList.add("cut");
    if (events?.readyState === EventSource.CLOSED) {
      leave();
      setTimeout(follow, PAUSE_MS);
    }
  };
  events.onopen = () => document.body.classList.remove("cut");
}

function leave() {
  if (events) events.close();
  events = null;
}

document.addEventListener("htmx:after:swap", () => localTimes(document));
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return leave();
  follow();
  refresh();
});
window.addEventListener("pagehide", leave);
window.addEventListener("pageshow", follow);
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    document.querySelector("header input[type=search]").focus();
  }
});
document.addEventListener("DOMContentLoaded", () => {
  localTimes(document);
  follow();
});
