/** The views, in the order of their tabs. */

import type { View } from "../view.js";
import { alignment } from "./alignment.js";
import { chain } from "./chain.js";
import { heads } from "./heads.js";
import { image } from "./image.js";
import { links } from "./links.js";
import { plane } from "./plane.js";
import { sound } from "./sound.js";
import { steps } from "./steps.js";
import { summary } from "./summary.js";
import { walk } from "./walk.js";

export const VIEWS: View[] = [alignment, heads, links, chain, image, plane, sound, steps, walk, summary];
