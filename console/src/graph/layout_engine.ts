// ELK in a worker of its own. A dossier, which is one file, has `dossier/layout_engine.ts` instead.
import ELK from "elkjs/lib/elk-api";
import workerAddress from "elkjs/lib/elk-worker.min.js?url";

export function openLayoutEngine(): InstanceType<typeof ELK> {
  return new ELK({ workerUrl: workerAddress });
}
