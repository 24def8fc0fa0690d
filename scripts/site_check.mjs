// Asks the built site's search each question of scripts/site_hook.py, in the worker of the theme, as it
// is and as a sentence.
// Exits with 1 if the question's page is not among the first three pages found.
import { readFileSync, readdirSync } from "node:fs";
import vm from "node:vm";

const site = process.argv[2];
const read = (path) => readFileSync(`${site}/${path}`, "utf8");
const index = JSON.parse(read("search/search_index.json"));
const workers = "assets/javascripts/workers";
const script = readdirSync(`${site}/${workers}`).find((name) => name.endsWith(".js"));

let handle, answer;
const worker = vm.createContext({
  addEventListener: (_, handler) => (handle = handler),
  postMessage: (message) => (answer = message),
  console,
});
worker.self = worker;
vm.runInContext(read(`${workers}/${script}`), worker);
class Worker {
  async postMessage(data) {
    await handle({ data });
  }
}
const page = vm.createContext({ Worker });
vm.runInContext(read("assets/javascripts/search.js"), page);

async function ask(message) {
  answer = undefined;
  new Worker().postMessage(message);
  while (!answer) await new Promise(setImmediate);
  return answer.data;
}

const questions = index.docs
  .filter((entry) => entry.tags && !entry.location.includes("#"))
  .flatMap(({ tags, location }) => tags.map((question) => [question, location]))
  .flatMap(([question, page]) => [[question, page], [`How do I ${question}?`, page]]);
await ask({ type: 0, data: { ...index, options: { suggest: false } } });
for (const [question, wanted] of questions) {
  const found = (await ask({ type: 2, data: question })).items
    .slice(0, 3)
    .map((sections) => sections[0].location.split("#")[0]);
  if (!found.includes(wanted)) {
    console.error(`search: "${question}" finds ${found.join(", ")} before ${wanted}`);
    process.exitCode = 1;
  }
}
