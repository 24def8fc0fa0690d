"use strict";
// Shows times in the reader's zone, and replaces the content when the server tells of a new picture.
// Everything on a page can be read without this file.

function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (!isNaN(moment)) {
      time.title = time.textContent;
      time.textContent = moment.toLocaleString();
    }
  }
}

localTimes(document);
