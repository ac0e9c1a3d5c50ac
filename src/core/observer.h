/* SPDX-License-Identifier: Apache-2.0 */
/* A unix socket at which observers of the same user, such as `wherry top`, read the statistics. */
#ifndef WH_CORE_OBSERVER_H
#define WH_CORE_OBSERVER_H

#include <stddef.h>
#include <stdint.h>

struct wh_engine;

/* Open the engine's socket as the setting `observe` says. Fails only if the setting names a
 * directory that cannot be used, or for lack of memory. */
int wh_observer_open(struct wh_engine *engine);
void wh_observer_close(struct wh_engine *engine);
/* Encode the statistics for observers; the caller frees *bytes. Any thread. 0 or -ENOMEM. */
int wh_observation_make(struct wh_engine *engine, uint8_t **bytes, size_t *length);

#endif
