/* SPDX-License-Identifier: Apache-2.0 */
/* Local regions: memory of this engine that is registered for transfers and published to peers. */
#ifndef WH_CORE_REGION_H
#define WH_CORE_REGION_H

#include <stdint.h>

#include "memory/region.h"
#include "transport/core.h"

struct wh_engine;
struct wh_region_record;

/* Fill the record that describes the region to peers; access is entry.access. */
void wh_region_record(const struct wh_region *region, struct wh_region_record *record);
#endif
