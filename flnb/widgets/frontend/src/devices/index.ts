import type { View, ViewContext } from "../view.ts";
import { DevicesView } from "./view.ts";

export const createDevicesView = (context: ViewContext): View => new DevicesView(context);
