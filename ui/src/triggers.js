// What starts runs by itself: schedules and webhooks.

import { get } from "./api.js";
import { html, useState } from "./html.js";
import { RUN_CHANGES, useLive } from "./live.js";
import { Problem, Skeleton } from "./parts.js";
import { link } from "./route.js";
import { When, readClock } from "./time.js";

export function Triggers({ parameters: { cursor = "" } }) {
  const [{ list, next, error }, setState] = useState({});
  useLive(RUN_CHANGES, async (isOver) => {
    try {
      const [page] = await Promise.all([get("/triggers", { limit: 50, cursor }), readClock()]);
      if (!isOver()) setState({ list: page.data, next: page.next });
    } catch (error) {
      if (!isOver()) setState((before) => ({ ...before, error }));
    }
  }, [cursor]);
  return html`
    <div class="bar-top"><h1>Triggers</h1></div>
    <${Problem} error=${error} />
    ${!list && !error && html`<${Skeleton} />`}
    ${list?.length === 0 && html`<div class="empty"><h2>No triggers</h2><p>Schedules and webhooks that start runs appear here.</p></div>`}
    ${list?.length > 0 && html`<div class="card flush"><table class="triggers"><tbody /></table></div>`}
    ${next && html`<nav class="pages"><a class="button" href=${link(["triggers"], { cursor: next })}>Older</a></nav>`}`;
}
