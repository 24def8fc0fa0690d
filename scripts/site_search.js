// Prepares the queries of the site's search; scripts/docs copies this file into the site.
// The theme finds every word that begins like a word of the query: "a" finds "alert". So words that
// carry no meaning are dropped, and endings: "rotates" finds "rotating" too.
{
  const empty = new Set(
    ("a about after all am an and any are as at be before been by can could did do does for from get" +
      " had has have how i if in into is it its me must my of on or our should so that the their" +
      " them then there they this to was we were what when where which who why will with would you" +
      " your").split(" ")
  );

  function prepare(query) {
    const words = query.split(/\s+/).map((word) => word.replace(/[?!.,;]+$/, ""));
    const kept = words.filter((word) => word && !empty.has(word.toLowerCase()));
    return (kept.length ? kept : words)
      .map((word) => word.replace(/^(\w{4,}?)(?:ing|ed|es|e|s)$/, "$1"))
      .join(" ");
  }

  const send = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...more) {
    const query = typeof message?.data === "string"; // the only text that the theme sends
    send.call(this, query ? { ...message, data: prepare(message.data) } : message, ...more);
  };
}
