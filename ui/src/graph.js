// Draws the plan of a workflow or run: a box per step, coloured by status, and a line per need. The boxes are links, so the
// keyboard reaches them in order of declaration.

import { get } from "./api.js";
import { html, useEffect, useMemo, useState } from "./html.js";
import { KindIcon, kindLabel } from "./kind.js";
import { layout } from "./layout.js";
import { Sign, tone, words } from "./status.js";
import { span } from "./time.js";

const WIDE = 164;
const SLIM = 132;
const HEIGHT = 44;
const NARROW = matchMedia("(max-width: 720px)");

/**
 * The plan of the workflow or run at `path`: the steps that are in no other step, each with how many are inside of it. Each
 * pair of steps has one edge, however often one needs the other.
 */
export async function readPlan(path) {
  const { nodes, edges } = (await get(`${path}/graph`)).data;
  const inside = (step) => nodes.filter((node) => node.parent === step).length;
  return {
    nodes: nodes.filter((node) => !node.parent).map((node) => ({ ...node, inside: inside(node.step) })),
    edges: [...new Map(edges.map((edge) => [`${edge.from}\0${edge.to}`, edge])).values()],
  };
}

export function Graph({ nodes, edges, steps, chosen, link }) {
  const [is_down, setDown] = useState(NARROW.matches);
  useEffect(() => {
    const turn = () => setDown(NARROW.matches);
    NARROW.addEventListener("change", turn);
    return () => NARROW.removeEventListener("change", turn);
  }, []);

  const drawn = useMemo(() => {
    const size = is_down
      ? { along: HEIGHT, across: SLIM, gapAlong: 30, gapAcross: 10 }
      : { along: WIDE, across: HEIGHT, gapAlong: 40, gapAcross: 14 };
    return layout(nodes.map((node) => node.step), edges, size);
  }, [nodes, edges, is_down]);

  const xy = (p) => (is_down ? [p.across, p.along] : [p.along, p.across]);
  const [width, height] = xy(drawn).map((length) => Math.ceil(length) + 8);
  const status = (name) => steps.get(name)?.status ?? "pending";

  return html`
    <div class="graph" style=${{ "--width": `${width}px` }}>
      <svg viewBox=${`-4 -4 ${width} ${height}`} width=${width} height=${height} role="group" aria-label="Steps and what they need">
        <defs>
          ${["taken", "untaken", "open"].map((kind) => html`
            <marker id=${`tip-${kind}`} class=${`tip ${kind}`} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
              <path d="M1 1 7 4 1 7Z" />
            </marker>`)}
        </defs>
        ${drawn.lines.map((line) => {
          const kind = progress(status(line.from), status(line.to));
          return html`<path key=${`${line.from}>${line.to}`} class=${`edge ${kind}`} d=${curve(line.points.map(xy), is_down)} marker-end=${`url(#tip-${kind})`} />`;
        })}
        ${nodes.map((node) => {
          const [x, y] = xy(drawn.at.get(node.step));
          return html`<${Box} key=${node.step} node=${node} step=${steps.get(node.step)} x=${x} y=${y} width=${is_down ? SLIM : WIDE} is_chosen=${node.step === chosen} href=${link?.(node.step)} />`;
        })}
      </svg>
    </div>`;
}

/** Without an `href` it draws the plan only: no status, no link. */
function Box({ node, step, x, y, width, is_chosen, href }) {
  const status = step?.status ?? "pending";
  const below = notes(node, step);
  return html`
    <${href ? "a" : "g"} href=${href} class=${href ? `box tone-${tone(status)}` : "box plain"} data-step=${node.step} data-status=${href && status}
       aria-current=${is_chosen ? "true" : undefined} aria-label=${[node.step, kindLabel(node.kind), href && words(status)].filter(Boolean).join(", ")}>
      <title>${node.step}\n${below}${node.if ? `\nif ${node.if}` : ""}</title>
      <rect class="face" x=${x} y=${y} width=${width} height=${HEIGHT} rx="7" />
      <foreignObject x=${x} y=${y} width=${width} height=${HEIGHT}>
        <div class="inside">
          ${href && html`<${Sign} status=${status} />`}
          <div><b>${node.step}</b><small><${KindIcon} kind=${node.kind} />${below}</small></div>
        </div>
      </foreignObject>
    <//>`;
}

/** The text below the name: what the icon does not show. */
function notes(node, step) {
  const notes = [kindLabel(node.kind)];
  if (node.if) notes.push("if");
  if (step?.counts) notes.push(Object.entries(step.counts).map(([status, count]) => `${count} ${words(status)}`).join(", "));
  else if (node.inside) notes.push(`${node.inside} ${node.inside === 1 ? "step" : "steps"} inside`);
  if (step && tone(step.status) !== "good") notes.push(words(step.status));
  if (step?.started_at && step.finished_at) notes.push(span(Date.parse(step.finished_at) - Date.parse(step.started_at)));
  if (step?.attempt > 1) notes.push(`attempt ${step.attempt}`);
  return notes.join(" · ");
}

/** A line is taken when both ends ran, and untaken when the target was skipped or cancelled. */
function progress(from, to) {
  if (to === "skipped" || to === "cancelled") return "untaken";
  return to !== "pending" && from !== "pending" ? "taken" : "open";
}

function curve(points, is_down) {
  const [[x, y], ...rest] = points;
  let [px, py] = [x, y];
  return rest.reduce((path, [x, y]) => {
    const bend = is_down ? `${px} ${(py + y) / 2} ${x} ${(py + y) / 2}` : `${(px + x) / 2} ${py} ${(px + x) / 2} ${y}`;
    const part = (is_down ? px === x : py === y) ? ` L${x} ${y}` : ` C${bend} ${x} ${y}`;
    [px, py] = [x, y];
    return path + part;
  }, `M${x} ${y}`);
}
