/* SPDX-License-Identifier: Apache-2.0 */
/* transport-list.c: the table of transports, and the check of capabilities against functions */
#include "unit.h"

#include <errno.h>

#include <wherry/transfer.h>

#include "core/region.h"
#include "memory/region-table.h"
#include "transport/rdma/wire.h"
#include "transport/transport.h"

static void list__each_is_sound(void **state)
{
	(void)state;
	assert_true(wh_transport_is_valid(&wh_transport_self));
	assert_true(wh_transport_is_valid(&wh_transport_shm));
	assert_true(wh_transport_is_valid(&wh_transport_rdma));
	assert_true(wh_transport_is_valid(&wh_transport_tcp));
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		assert_true(wh_transport_is_valid(wh_transport(id)));
}

static void list__nothing_is_left_out(void **state)
{
	(void)state;
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++) {
		const struct wh_transport *transport = wh_transport(id);

		assert_non_null(transport->engine_open);
		assert_non_null(transport->engine_close);
		assert_non_null(transport->peer_open);
		assert_non_null(transport->peer_close);
		assert_non_null(transport->peer_lost);
		assert_non_null(transport->peer_again);
		assert_non_null(transport->region_gone);
		assert_non_null(transport->region_export);
		assert_non_null(transport->peer_frame);
		assert_non_null(transport->is_reachable);
		assert_non_null(transport->submit);
		assert_non_null(transport->progress);
		assert_non_null(transport->cancel);
		assert_non_null(transport->abort);
		assert_non_null(transport->describe);
		assert_non_null(transport->estimate);
		assert_non_null(transport->session_accept);
		assert_non_null(transport->session_ending);
		assert_non_null(transport->session_close);
		assert_non_null(transport->session_abort);
		assert_non_null(transport->session_frame);
		assert_non_null(transport->session_reaches_gpus);
	}
}

static void list__by_name(void **state)
{
	(void)state;
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		assert_int_equal(wh_transport_by_name(wh_transport(id)->name), id);
	assert_int_equal(wh_transport_by_name("shm"), WH_TRANSPORT_SHM);
	assert_int_equal(wh_transport_by_name(""), WH_TRANSPORT_COUNT);
	assert_int_equal(wh_transport_by_name("SHM"), WH_TRANSPORT_COUNT);
	assert_int_equal(wh_transport_by_name("rdma"), WH_TRANSPORT_RDMA);
}

/* No frame type belongs to the core and a transport, or to two transports. */
static void list__frames_are_apart(void **state)
{
	(void)state;
	for (unsigned type = 0; type <= WH_FRAME_TYPE_END; type++) {
		unsigned owners = 0;

		for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++) {
			const struct wh_transport *transport = wh_transport(id);

			if (type < transport->frame_first || type >= transport->frame_end)
				continue;
			owners++;
			assert_int_equal(wh_transport_by_frame((uint16_t)type), id);
		}
		if (type < WH_FRAME_TRANSPORTS || type >= WH_FRAME_TYPE_END)
			assert_int_equal(owners, 0);
		assert_true(owners <= 1);
		if (!owners)
			assert_int_equal(wh_transport_by_frame((uint16_t)type), WH_TRANSPORT_COUNT);
	}
	assert_int_equal(wh_transport_by_frame(WH_FRAME_RDMA_CONNECT), WH_TRANSPORT_RDMA);
	assert_int_equal(wh_transport_by_frame(WH_FRAME_RDMA_RING_OPENED), WH_TRANSPORT_RDMA);
}

/* A capability without its function, or a function without its capability. */
static void sound__what_is_missing(void **state)
{
	struct wh_transport wrong;

	(void)state;
	wrong = wh_transport_shm;
	wrong.name = "";
	assert_false(wh_transport_is_valid(&wrong));
	wrong.name = "a name that is too long";
	assert_false(wh_transport_is_valid(&wrong));
	wrong = wh_transport_shm;
	wrong.submit = NULL;
	assert_false(wh_transport_is_valid(&wrong));
	wrong = wh_transport_shm;
	wrong.progress = NULL;
	assert_false(wh_transport_is_valid(&wrong));
	wrong = wh_transport_shm;
	wrong.role = 0;
	assert_false(wh_transport_is_valid(&wrong));
	wrong = wh_transport_shm;
	wrong.session_close = NULL;
	assert_false(wh_transport_is_valid(&wrong));
	wrong = wh_transport_shm;
	wrong.capabilities |= WH_CAN_ABORT;
	assert_false(wh_transport_is_valid(&wrong));
	wrong = wh_transport_shm;
	wrong.capabilities &= ~(uint32_t)WH_CAN_PROGRESS;
	assert_false(wh_transport_is_valid(&wrong));
	/* A transport with frames of its own sends both ways, and has a session to close. */
	wrong = wh_transport_rdma;
	wrong.session_frame = NULL;
	assert_false(wh_transport_is_valid(&wrong));
	wrong = wh_transport_rdma;
	wrong.peer_frame = NULL;
	assert_false(wh_transport_is_valid(&wrong));
	wrong = wh_transport_rdma;
	wrong.session_close = NULL;
	assert_false(wh_transport_is_valid(&wrong));
	wrong = wh_transport_rdma;
	wrong.frame_first = wrong.frame_end = 0;
	assert_false(wh_transport_is_valid(&wrong));
	wrong = wh_transport_rdma;
	wrong.frame_first = WH_FRAME_NOTIFY;
	assert_false(wh_transport_is_valid(&wrong));
	wrong = wh_transport_rdma;
	wrong.frame_end = WH_FRAME_TYPE_END + 1;
	assert_false(wh_transport_is_valid(&wrong));
	/* notify and notified belong together, and to their capability. */
	wrong = wh_transport_rdma;
	wrong.notified = NULL;
	assert_false(wh_transport_is_valid(&wrong));
	wrong = wh_transport_rdma;
	wrong.capabilities &= ~(uint32_t)WH_CAN_NOTIFY;
	assert_false(wh_transport_is_valid(&wrong));
	/* Default functions count as missing. */
	wrong = *wh_transport(WH_TRANSPORT_SELF);
	wrong.capabilities |= WH_CAN_ABORT;
	assert_false(wh_transport_is_valid(&wrong));
}

static void defaults__do_nothing(void **state)
{
	const struct wh_transport *self = wh_transport(WH_TRANSPORT_SELF);
	struct wh_region_entry remote = { .kind = WH_MEMORY_SHARED };
	struct wh_region local = { .entry = { .kind = WH_MEMORY_PAGEABLE } };
	char why[WH_REFUSAL] = "as it was";

	(void)state;
	assert_int_equal(self->is_reachable(NULL, NULL, &local, &remote, WH_READ, why), 0);
	assert_int_equal(self->abort(NULL, NULL, NULL, 0), 0);
	self->region_gone(NULL, NULL, NULL);
	self->region_coming(NULL, NULL, NULL);
	self->region_closed(NULL, NULL, NULL);
	self->session_ending(NULL);
	self->session_close(NULL);
	self->session_abort(NULL, 7);
	assert_string_equal(why, "as it was");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(list__each_is_sound),
		cmocka_unit_test(list__nothing_is_left_out),
		cmocka_unit_test(list__by_name),
		cmocka_unit_test(list__frames_are_apart),
		cmocka_unit_test(sound__what_is_missing),
		cmocka_unit_test(defaults__do_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
