// SHA-256 by WebCrypto, which browsers offer to pages that are opened from the disk too.

/** The browser has no WebCrypto here: nothing can be checked, and nothing is called whole. */
export class NoWebCrypto extends Error {}

export async function computeDigest(data: Uint8Array<ArrayBuffer>): Promise<string> {
  const subtle = (globalThis.crypto as Crypto | undefined)?.subtle;
  if (!subtle) throw new NoWebCrypto();
  const digest = new Uint8Array(await subtle.digest("SHA-256", data));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
