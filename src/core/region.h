/* SPDX-License-Identifier: Apache-2.0 */
/* Local regions: memory of this engine that is registered for transfers and published to peers. */
#ifndef WH_CORE_REGION_H
#define WH_CORE_REGION_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/region.h"
#include "transport/core.h"

struct wh_engine;
struct wh_region_record;

/* 1 to WH_NAME_MAX - 1 of A-Z a-z 0-9 . _ - */
bool wh_region_name_is_valid(const char *name);
/* Fill the record that describes the region to peers; access is entry.access. */
void wh_region_record(const struct wh_region *region, struct wh_region_record *record);
/* May the peer of this name list the region? */
bool wh_region_is_listed(const struct wh_region *region, const char *name);
#endif
