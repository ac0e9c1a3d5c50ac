/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_ENVIRONMENT_H
#define BENCH_ENVIRONMENT_H

#include <jansson.h>

/* The machine, this build, the time, and the knobs, of which keys are left out. Of the registry's
 * URL (NULL: there is none) the scheme alone: a password may be in it. A new reference. */
json_t *bench_environment(const char *registry, const char *const *config);

#endif
