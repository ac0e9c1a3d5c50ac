/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of this engine: registering, publishing, and taking back. */
#ifndef WH_CORE_REGION_H
#define WH_CORE_REGION_H

#include <stdint.h>

#include "memory/region.h"

struct wh_engine;
struct wh_region_record;

void wh_region_record(const struct wh_region *region, struct wh_region_record *record);
/* What an engine of this name may do with it, enum wh_access; place.access is what any of them
 * may. */
uint8_t wh_region_access(const struct wh_region *region, const char *name);

#endif
