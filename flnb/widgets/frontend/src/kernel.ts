/**
 * Whether the kernel still lives. JupyterLab's widget manager knows its kernel connection; other hosts may not, and
 * then nothing is claimed. Everything is looked at with care: none of this is part of the widget protocol.
 */

export type KernelStatus = "connected" | "restarted" | "disconnected";

interface Signal { connect(slot: () => void): unknown; disconnect(slot: () => void): unknown }
interface Connection { status?: string; connectionStatus?: string; statusChanged?: Signal; connectionStatusChanged?: Signal }

/** What a status of JupyterLab's kernel connection means for the dashboard; null keeps what was known. */
export function kernelStatus(status: string | undefined, connection: string | undefined): KernelStatus | null {
  if (status === "restarting" || status === "autorestarting") return "restarted";
  if (status === "dead" || status === "terminating" || connection === "disconnected") return "disconnected";
  return null;
}

/** Report changes; returns the function that ends it. A restarted kernel stays "restarted": its widgets are gone for good. */
export function watchKernel(manager: unknown, report: (status: KernelStatus) => void): () => void {
  const kernel = (manager as { kernel?: Connection } | null | undefined)?.kernel;
  if (!kernel || typeof kernel !== "object") return () => undefined;
  let restarted = false;
  const look = (): void => {
    const status = kernelStatus(kernel.status, kernel.connectionStatus);
    if (status === "restarted") restarted = true;
    if (restarted) report("restarted");
    else report(status ?? "connected");
  };
  kernel.statusChanged?.connect?.(look);
  kernel.connectionStatusChanged?.connect?.(look);
  return () => {
    kernel.statusChanged?.disconnect?.(look);
    kernel.connectionStatusChanged?.disconnect?.(look);
  };
}
