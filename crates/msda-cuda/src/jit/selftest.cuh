// A header, so that including one is tested.
#pragma once

float doubled(float x) { return 2 * x; }
