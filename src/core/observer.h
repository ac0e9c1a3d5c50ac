/* SPDX-License-Identifier: Apache-2.0 */
/* The socket that observers of the same user ask. */
#ifndef WH_CORE_OBSERVER_H
#define WH_CORE_OBSERVER_H

#include <stddef.h>
#include <stdint.h>

struct wh_engine;

/* Make the engine's unix socket, as the knob `observe` says. An error only if the knob names a
 * directory that cannot be used. */
int wh_observer_open(struct wh_engine *engine);
void wh_observer_close(struct wh_engine *engine);
/* The bytes that observers are told, to be freed by the caller. */
int wh_observation_make(struct wh_engine *engine, uint8_t **bytes, size_t *length);

#endif
