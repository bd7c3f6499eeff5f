// Names for the types of the API that pages use; schema.d.ts is made from its OpenAPI document.
import type { components } from "./schema";

type Schemas = components["schemas"];

export type Summary = Schemas["Summary"];
export type Moment = Schemas["Moment"];
export type StepMoment = Schemas["StepMoment"];
export type StageView = Schemas["StageView"];
export type LoopView = Schemas["LoopView"];
export type FrameBin = Schemas["FrameBin"];
export type FrameHistory = Schemas["FrameHistory"];
export type FrameLease = Schemas["FrameLease"];
export type FrameRowPage = Schemas["FrameRowPage"];
export type EventView = Schemas["EventView"];
export type EventPage = Schemas["EventPage"];
export type LogPage = Schemas["LogPage"];
export type LogLine = Schemas["LogLineView"];
export type ItemPage = Schemas["ItemPage"];
export type ItemView = Schemas["ItemView"];
export type ResultList = Schemas["ResultList"];
export type ResultView = Schemas["ResultView"];
export type Outline = Schemas["Outline"];
export type PlaybookView = Schemas["PlaybookView"];
export type PlaybookSummary = Schemas["PlaybookSummary"];
export type DraftCheck = Schemas["DraftCheck"];
export type Problem = DraftCheck["problems"][number];
export type Accepted = Schemas["Accepted"];
export type Whoami = Schemas["Whoami"];
export type Density = Schemas["Density"];
export type Diff = Schemas["Diff"];
export type Counterfactual = Schemas["CounterfactualReport"];
export type RunDifference = Schemas["RunDifference"];
export type ServiceHealth = Schemas["ServiceHealth"];
export type LetterPage = Schemas["LetterPage"];
export type CheckList = Schemas["CheckList"];
export type CheckView = Schemas["CheckView"];
export type RunCheckList = Schemas["RunCheckList"];
export type MomentProgress = Schemas["MomentProgress"];
