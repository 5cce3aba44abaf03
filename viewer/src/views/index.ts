/** The views, in the order of their tabs. */

import type { View } from "../view.js";
import { alignment } from "./alignment.js";

export const VIEWS: View[] = [alignment];
