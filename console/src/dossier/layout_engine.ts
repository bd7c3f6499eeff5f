// ELK within the page: a file that is opened from the disk may start no worker.
import ELK from "elkjs/lib/elk.bundled.js";

export function openLayoutEngine(): InstanceType<typeof ELK> {
  return new ELK();
}
