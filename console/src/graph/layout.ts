// Places of steps and arcs, computed by ELK.
import type { ElkNode } from "elkjs/lib/elk-api";
import type { Outline } from "../lib/types";
import { openLayoutEngine } from "./layout_engine";

export const STEP_WIDTH = 190;
export const STEP_HEIGHT = 56;
// A larger graph is shown as lanes alone: neither ELK nor a reader gets far with it.
export const STEPS_MAX = 400;
const LABEL_CHARACTERS = 26;

export interface Place {
  x: number;
  y: number;
}

export interface GraphLayout {
  places: Record<string, Place>;
  width: number;
  height: number;
}

const LABEL_CHARACTER = 6;

/** Room between layers, so that the longest label of an arc is read between two steps. */
function measureGap(labels: string[]): string {
  const longest = Math.max(0, ...labels.map((label) => label.length));
  return String(longest ? longest * LABEL_CHARACTER + 40 : 56);
}

/** What an arc says of when it is taken. */
export function labelArc(arc: Outline["steps"][number]["arcs"][number]): string {
  const said = arc.when ?? (arc.on && arc.on !== "step.exit" ? arc.on : "");
  const label = said.replaceAll(/^\{\{\s*|\s*\}\}$/g, "");
  return label.length > LABEL_CHARACTERS ? `${label.slice(0, LABEL_CHARACTERS - 1)}…` : label;
}

const OPTIONS = {
  "elk.algorithm": "layered",
  "elk.spacing.nodeNode": "24",
  "elk.layered.considerModelOrder.strategy": "NODES_AND_EDGES",
  "elk.separateConnectedComponents": "false",
};

let elk: ReturnType<typeof openLayoutEngine> | null = null;

/** Lay out from left to right, or downwards where there is no room for that. */
export async function layOutSteps(plan: Outline, isNarrow: boolean): Promise<GraphLayout> {
  elk ??= openLayoutEngine();
  const names = new Set(plan.steps.map((step) => step.step));
  const graph: ElkNode = {
    id: "plan",
    layoutOptions: {
      ...OPTIONS,
      "elk.direction": isNarrow ? "DOWN" : "RIGHT",
      "elk.layered.spacing.nodeNodeBetweenLayers": isNarrow
        ? "48"
        : measureGap(plan.steps.flatMap((step) => step.arcs.map(labelArc))),
    },
    children: plan.steps.map((step) => ({ id: step.step, width: STEP_WIDTH, height: STEP_HEIGHT })),
    edges: plan.steps.flatMap((step) =>
      step.arcs
        .filter((arc) => names.has(arc.step) && arc.step !== step.step)
        .map((arc, index) => ({
          id: `${step.step}/${index}`,
          sources: [step.step],
          targets: [arc.step],
        })),
    ),
  };
  const laid = await elk.layout(graph);
  const places = Object.fromEntries(
    (laid.children ?? []).map((child): [string, Place] => [
      child.id,
      { x: child.x ?? 0, y: child.y ?? 0 },
    ]),
  );
  return { places, width: laid.width ?? 0, height: laid.height ?? 0 };
}
