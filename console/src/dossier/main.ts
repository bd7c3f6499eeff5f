// Opens a dossier: one file, from the disk, without a server.
import { mount } from "svelte";
import "../app.css";
import { useRecords } from "../lib/records";
import { router } from "../lib/router.svelte";
import { session } from "../lib/session.svelte";
import type { Whoami } from "../lib/types";
import { buildRecords } from "./dossier_records";
import DossierPage from "./DossierPage.svelte";
import { readDossier } from "./parts";

const dossier = readDossier(document);
const seal = dossier.seal.value;
useRecords(buildRecords(dossier));
router.keepInFragment();
// Who reads may see what the dossier holds, and change nothing.
session.who = {
  tenant: seal?.tenant_id ?? "",
  organization: seal?.organization_id ?? "",
  permissions: seal?.permissions ?? [],
} as unknown as Whoami;
session.isLoading = false;

const target = document.getElementById("app");
if (!target) throw new Error("the dossier has no #app");
mount(DossierPage, { target, props: { dossier } });
