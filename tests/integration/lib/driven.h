/* SPDX-License-Identifier: Apache-2.0 */
/* driven.h: engines without threads, for tests that do not care which kind they have
 *
 * TESTS_NO_THREADS=initiator, target or both: the engine of a fixture, those of the children, or
 * all of these start no thread (WH_ENGINE_NO_THREADS). Where the test or the child would sleep, the
 * functions below make the engine's progress. One engine a process is driven: from the test's
 * thread only. */
#ifndef TESTS_INTEGRATION_LIB_DRIVEN_H
#define TESTS_INTEGRATION_LIB_DRIVEN_H

#include "harness.h"

/* wh_engine_options.flags of a side, "initiator" or "target". */
uint32_t driven_flags(const char *side);

/* Drive this engine from now on, if it has no threads; NULL: none. */
void driven_set(struct wh_engine *engine);

/* Is an engine driven? */
bool driven_is_set(void);

/* Wait until `fd` is readable (-1: none) or `timeout` ns have passed, and drive the engine. */
void driven_wait(int fd, int64_t timeout);

#endif
