// The dashboard: a top bar, and the view that the URL names. A new view is one line in `view` and one in `PLACES`.

import { get } from "./api.js";
import { effect, html, render, signal } from "./html.js";
import { SignIn, refused } from "./key.js";
import { connection } from "./live.js";
import { link, route } from "./route.js";
import { Run } from "./run.js";
import { Runs } from "./runs.js";
import { Triggers } from "./triggers.js";
import { ahead, now } from "./time.js";
import { Workflow, Workflows } from "./workflows.js";

const PLACES = [["runs", "Runs"], ["workflows", "Workflows"], ["triggers", "Triggers"]];

function view({ segments: [place, id], parameters }) {
  switch (place) {
    case "runs": return id ? html`<${Run} key=${id} id=${id} parameters=${parameters} />` : html`<${Runs} parameters=${parameters} />`;
    case "workflows": return id ? html`<${Workflow} key=${id} id=${id} />` : html`<${Workflows} parameters=${parameters} />`;
    case "triggers": return html`<${Triggers} parameters=${parameters} />`;
    default: return html`<div class="empty"><h2>Nothing here</h2><p><a class="button" href=${link(["runs"])}>Show all runs</a></p></div>`;
  }
}

const version = signal("");
const greet = async () => (version.value = (await get("/version")).data.version);

/** Views load after the first response, so a server that requires a key refuses one request and not all of a view. */
const is_greeted = signal(false);
greet().catch(() => {}).finally(() => (is_greeted.value = true));

const CONNECTIONS = {
  live: "Live: changes appear as they happen",
  polling: "Polling every two seconds: the live stream is not available",
  offline: "The server is unreachable; reconnecting",
  idle: "Nothing on this view can change any more",
};

function App() {
  const place = route.value.segments[0];
  const is_refused = refused.value !== null;
  return html`
    <header class="top">
      <a class="brand" href=${link(["runs"])}><svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" /><path d="M8 16h13M15.5 9.5 22 16l-6.5 6.5" /></svg>Onward</a>
      ${!is_refused && html`<nav aria-label="Main">
        ${PLACES.map(([name, label]) => html`<a href=${link([name])} aria-current=${place === name ? "page" : undefined}>${label}</a>`)}
      </nav>
      <span class="end">
        ${ahead.value !== null && html`<span class="tag clock" title="The server's clock is virtual: it moves only on request">clock ${new Date(now.value).toISOString().slice(0, 19)}Z</span>`}
        <span class=${`connection ${connection.value}`} role="status" title=${CONNECTIONS[connection.value]}>${connection.value}</span>
        <span class="muted version">${version.value}</span>
      </span>`}
    </header>
    <main>${is_refused ? html`<${SignIn} greet=${greet} />` : is_greeted.value && view(route.value)}</main>`;
}

effect(() => (document.title = ["Onward", ...route.value.segments].reverse().join(" · ")));

render(html`<${App} />`, document.getElementById("app"));
