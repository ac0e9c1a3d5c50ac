/* SPDX-License-Identifier: Apache-2.0 */
/* rails.h: two engines with several fake NICs each, and one large transfer between them */
#ifndef TESTS_INTEGRATION_LIB_RAILS_H
#define TESTS_INTEGRATION_LIB_RAILS_H

#include "nics.h"

#define RAILS_LENGTH (8 * MIB) /* of the region */
#define RAILS_COUNT 4 /* most rails of each side */

/* Let the fake library have the NICs fake0 to fake7. Tests use the first four here and the others
 * at the target. */
void rails_fake_nics(void);
/* Open a fixture with these NICs here and at the target (values of the setting `rdma`), and with
 * one more setting here, unless `more` is NULL. */
void rails_fixture(struct fixture *f, const char *ours, const char *theirs);
void rails_fixture_with(struct fixture *f, const char *ours, const char *theirs, const char *more);
/* One transfer of the whole region. */
struct wh_batch *rails_batch(struct fixture *f, uint32_t op);
/* Fill the source of such a transfer; check that all its bytes have arrived. */
void rails_fill(struct fixture *f, uint32_t op, uint64_t seed);
void want_rails_bytes(struct fixture *f, uint32_t op, uint64_t seed);
/* Fill, run and check. */
void rails_run(struct fixture *f, struct wh_batch *batch, uint32_t op, uint64_t seed);
/* Run the batch; `by`: the bytes that each of our NICs moved. */
void rails_run_counted(struct wh_batch *batch, uint64_t by[RAILS_COUNT]);
/* Run the batch until `rails_wanted` rails move bytes. */
void want_rails_used(struct wh_batch *batch, unsigned rails_wanted);
/* The transport has moved all bytes of the batch. */
void want_all_by(struct wh_batch *batch, const char *transport);

#endif
