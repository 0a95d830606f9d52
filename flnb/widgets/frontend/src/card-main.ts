import { equip } from "./card.ts";

equip(document);
