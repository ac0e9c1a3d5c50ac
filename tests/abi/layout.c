/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Public structs and constants stay where they are: a program compiled against an older header goes
 * on working. Structs that start with their size may grow at the end: that is a new row here and a
 * new size, and the rows before it stay.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <wherry/mooncake.h>
#include <wherry/wherry.h>

struct row {
	const char *what;
	size_t got, pinned;
};

#define SIZE(type, pinned)                                                                         \
	{                                                                                          \
		"sizeof(struct " #type ")", sizeof(struct type), pinned                            \
	}
#define FIELD(type, field, pinned)                                                                 \
	{                                                                                          \
#type "." #field, offsetof(struct type, field), pinned                             \
	}

/* Where pointers are 8 bytes. */
static const struct row structs[] = {
	SIZE(wh_config_row, 40),
	FIELD(wh_config_row, name, 0),
	FIELD(wh_config_row, environment, 8),
	FIELD(wh_config_row, fallback, 16),
	FIELD(wh_config_row, type, 24),
	FIELD(wh_config_row, help, 32),
	SIZE(wh_engine_options, 56),
	FIELD(wh_engine_options, size, 0),
	FIELD(wh_engine_options, name, 8),
	FIELD(wh_engine_options, listen, 16),
	FIELD(wh_engine_options, config, 24),
	FIELD(wh_engine_options, log, 32),
	FIELD(wh_engine_options, log_arg, 40),
	FIELD(wh_engine_options, registry, 48),
	SIZE(wh_peer_options, 16),
	FIELD(wh_peer_options, size, 0),
	FIELD(wh_peer_options, timeout, 8),
	SIZE(wh_peer_info, 152),
	FIELD(wh_peer_info, size, 0),
	FIELD(wh_peer_info, epoch, 8),
	FIELD(wh_peer_info, state, 16),
	FIELD(wh_peer_info, regions, 20),
	FIELD(wh_peer_info, name, 24),
	FIELD(wh_peer_info, address, 88),
	SIZE(wh_completion, 24),
	FIELD(wh_completion, batch, 0),
	FIELD(wh_completion, user, 8),
	FIELD(wh_completion, status, 16),
	FIELD(wh_completion, reserved, 20),
	SIZE(wh_notification, 4176),
	FIELD(wh_notification, epoch, 0),
	FIELD(wh_notification, length, 8),
	FIELD(wh_notification, sender, 16),
	FIELD(wh_notification, data, 80),
	SIZE(wh_memory_options, 24),
	FIELD(wh_memory_options, size, 0),
	FIELD(wh_memory_options, kind, 8),
	FIELD(wh_memory_options, flags, 12),
	FIELD(wh_memory_options, location, 16),
	SIZE(wh_memory_info, 288),
	FIELD(wh_memory_info, size, 0),
	FIELD(wh_memory_info, kind, 8),
	FIELD(wh_memory_info, page_size, 12),
	FIELD(wh_memory_info, base, 16),
	FIELD(wh_memory_info, length, 24),
	FIELD(wh_memory_info, stage, 32),
	FIELD(wh_memory_info, pinned, 36),
	FIELD(wh_memory_info, exports, 40),
	FIELD(wh_memory_info, mappings, 44),
	FIELD(wh_memory_info, device, 48),
	FIELD(wh_memory_info, numa_node, 52),
	FIELD(wh_memory_info, imported, 56),
	FIELD(wh_memory_info, reserved, 60),
	FIELD(wh_memory_info, buffer_id, 64),
	FIELD(wh_memory_info, device_address, 72),
	FIELD(wh_memory_info, host_address, 80),
	FIELD(wh_memory_info, uuid, 88),
	FIELD(wh_memory_info, pci, 136),
	FIELD(wh_memory_info, refusal, 160),
	SIZE(wh_grant, 16),
	FIELD(wh_grant, peer, 0),
	FIELD(wh_grant, access, 8),
	FIELD(wh_grant, reserved, 12),
	SIZE(wh_region_options, 32),
	FIELD(wh_region_options, size, 0),
	FIELD(wh_region_options, name, 8),
	FIELD(wh_region_options, access, 16),
	FIELD(wh_region_options, grant_count, 20),
	FIELD(wh_region_options, grants, 24),
	SIZE(wh_remote, 96),
	FIELD(wh_remote, id, 0),
	FIELD(wh_remote, address, 8),
	FIELD(wh_remote, length, 16),
	FIELD(wh_remote, access, 24),
	FIELD(wh_remote, kind, 28),
	FIELD(wh_remote, name, 32),
	SIZE(wh_transfer, 48),
	FIELD(wh_transfer, local, 0),
	FIELD(wh_transfer, local_offset, 8),
	FIELD(wh_transfer, remote, 16),
	FIELD(wh_transfer, remote_offset, 24),
	FIELD(wh_transfer, length, 32),
	FIELD(wh_transfer, op, 40),
	FIELD(wh_transfer, reserved, 44),
	SIZE(wh_base, 32),
	FIELD(wh_base, local, 0),
	FIELD(wh_base, local_offset, 8),
	FIELD(wh_base, remote, 16),
	FIELD(wh_base, remote_offset, 24),
	SIZE(wh_blocks_desc, 80),
	FIELD(wh_blocks_desc, size, 0),
	FIELD(wh_blocks_desc, op, 8),
	FIELD(wh_blocks_desc, reserved, 12),
	FIELD(wh_blocks_desc, block_length, 16),
	FIELD(wh_blocks_desc, count, 24),
	FIELD(wh_blocks_desc, bases, 32),
	FIELD(wh_blocks_desc, base_count, 40),
	FIELD(wh_blocks_desc, local_offsets, 48),
	FIELD(wh_blocks_desc, local_stride, 56),
	FIELD(wh_blocks_desc, remote_offsets, 64),
	FIELD(wh_blocks_desc, remote_stride, 72),
	SIZE(wh_batch_options, 56),
	FIELD(wh_batch_options, size, 0),
	FIELD(wh_batch_options, queue, 8),
	FIELD(wh_batch_options, callback, 16),
	FIELD(wh_batch_options, callback_arg, 24),
	FIELD(wh_batch_options, user, 32),
	FIELD(wh_batch_options, priority, 40),
	FIELD(wh_batch_options, reserved, 44),
	FIELD(wh_batch_options, require, 48),
	SIZE(wh_route, 280),
	FIELD(wh_route, transport, 0),
	FIELD(wh_route, detail, 16),
	FIELD(wh_route, bytes, 64),
	FIELD(wh_route, transfers, 72),
	FIELD(wh_route, refused, 80),
	FIELD(wh_route, inapplicable, 272),
	FIELD(wh_route, reserved, 276),
	SIZE(wh_estimate, 64),
	FIELD(wh_estimate, size, 0),
	FIELD(wh_estimate, bytes, 8),
	FIELD(wh_estimate, transfers, 16),
	FIELD(wh_estimate, duration, 24),
	FIELD(wh_estimate, kernel, 32),
	FIELD(wh_estimate, copies, 40),
	FIELD(wh_estimate, ctas, 48),
	FIELD(wh_estimate, measured, 52),
	FIELD(wh_estimate, working_set, 56),
	SIZE(wh_window_options, 24),
	FIELD(wh_window_options, size, 0),
	FIELD(wh_window_options, backends, 8),
	FIELD(wh_window_options, mapping, 16),
	FIELD(wh_window_options, reserved, 20),
	SIZE(wh_window_info, 736),
	FIELD(wh_window_info, size, 0),
	FIELD(wh_window_info, pointer, 8),
	FIELD(wh_window_info, address, 16),
	FIELD(wh_window_info, length, 24),
	FIELD(wh_window_info, engine_from, 32),
	FIELD(wh_window_info, mapping, 40),
	FIELD(wh_window_info, reserved, 44),
	FIELD(wh_window_info, backend, 48),
	FIELD(wh_window_info, writes, 64),
	FIELD(wh_window_info, reads, 80),
	FIELD(wh_window_info, said, 96),
	SIZE(wh_latency, 240),
	FIELD(wh_latency, count, 0),
	FIELD(wh_latency, sum, 8),
	FIELD(wh_latency, bucket, 16),
	SIZE(wh_transport_counters, 64),
	FIELD(wh_transport_counters, transport, 0),
	FIELD(wh_transport_counters, read_bytes, 16),
	FIELD(wh_transport_counters, written_bytes, 24),
	FIELD(wh_transport_counters, reads, 32),
	FIELD(wh_transport_counters, writes, 40),
	FIELD(wh_transport_counters, errors, 48),
	FIELD(wh_transport_counters, reroutes, 56),
	SIZE(wh_counters, 1104),
	FIELD(wh_counters, size, 0),
	FIELD(wh_counters, batches, 8),
	FIELD(wh_counters, failed, 16),
	FIELD(wh_counters, cancelled, 24),
	FIELD(wh_counters, transports, 32),
	FIELD(wh_counters, reserved, 36),
	FIELD(wh_counters, transport, 40),
	FIELD(wh_counters, small, 552),
	FIELD(wh_counters, large, 792),
	FIELD(wh_counters, attempts, 1032),
	FIELD(wh_counters, large_in_flight, 1096),
	SIZE(wh_engine_counters, 152),
	FIELD(wh_engine_counters, size, 0),
	FIELD(wh_engine_counters, uptime, 8),
	FIELD(wh_engine_counters, peers, 16),
	FIELD(wh_engine_counters, peers_opened, 24),
	FIELD(wh_engine_counters, peers_lost, 32),
	FIELD(wh_engine_counters, sessions, 40),
	FIELD(wh_engine_counters, sessions_opened, 48),
	FIELD(wh_engine_counters, connections, 56),
	FIELD(wh_engine_counters, regions, 64),
	FIELD(wh_engine_counters, region_bytes, 72),
	FIELD(wh_engine_counters, registrations, 80),
	FIELD(wh_engine_counters, registration_time, 88),
	FIELD(wh_engine_counters, windows, 96),
	FIELD(wh_engine_counters, windows_opened, 104),
	FIELD(wh_engine_counters, staged_bytes, 112),
	FIELD(wh_engine_counters, served_read_bytes, 120),
	FIELD(wh_engine_counters, served_written_bytes, 128),
	FIELD(wh_engine_counters, served_requests, 136),
	FIELD(wh_engine_counters, unfinished, 144),
	/* As Mooncake's header has them. */
	SIZE(transfer_request, 40),
	FIELD(transfer_request, opcode, 0),
	FIELD(transfer_request, source, 8),
	FIELD(transfer_request, target_id, 16),
	FIELD(transfer_request, target_offset, 24),
	FIELD(transfer_request, length, 32),
	SIZE(transfer_status, 16),
	FIELD(transfer_status, status, 0),
	FIELD(transfer_status, transferred_bytes, 8),
	SIZE(notify_msg, 16),
	FIELD(notify_msg, name, 0),
	FIELD(notify_msg, msg, 8),
	SIZE(buffer_entry, 16),
	FIELD(buffer_entry, addr, 0),
	FIELD(buffer_entry, length, 8),
	SIZE(segment_desc, 48),
	FIELD(segment_desc, type, 0),
	FIELD(segment_desc, desc_, 8),
	{ "segment_id_t", sizeof(segment_id_t), 4 },
	{ "batch_id_t", sizeof(batch_id_t), 8 },
	{ "transfer_engine_t", sizeof(transfer_engine_t), 8 },
};

static const struct row constants[] = {
	{ "WH_PEER_CONNECTED", WH_PEER_CONNECTED, 1 },
	{ "WH_PEER_LOST", WH_PEER_LOST, 2 },
	{ "WH_PEER_STALE", WH_PEER_STALE, 3 },
	{ "WH_MEMORY_PAGEABLE", WH_MEMORY_PAGEABLE, 1 },
	{ "WH_MEMORY_HUGE", WH_MEMORY_HUGE, 2 },
	{ "WH_MEMORY_SHARED", WH_MEMORY_SHARED, 3 },
	{ "WH_MEMORY_PINNED", WH_MEMORY_PINNED, 4 },
	{ "WH_MEMORY_MAPPED", WH_MEMORY_MAPPED, 5 },
	{ "WH_MEMORY_DEVICE", WH_MEMORY_DEVICE, 6 },
	{ "WH_MEMORY_VMM", WH_MEMORY_VMM, 7 },
	{ "WH_MEMORY_MANAGED", WH_MEMORY_MANAGED, 8 },
	{ "WH_MEMORY_POOL", WH_MEMORY_POOL, 9 },
	{ "WH_MEMORY_WRITE_COMBINED", WH_MEMORY_WRITE_COMBINED, 1 },
	{ "WH_STAGE_SEPARATE", WH_STAGE_SEPARATE, 1 },
	{ "WH_STAGE_MAPPED", WH_STAGE_MAPPED, 2 },
	{ "WH_STAGE_UNIFIED", WH_STAGE_UNIFIED, 3 },
	{ "WH_EXPORT_IPC", WH_EXPORT_IPC, 1 },
	{ "WH_EXPORT_FD", WH_EXPORT_FD, 2 },
	{ "WH_EXPORT_POOL_FD", WH_EXPORT_POOL_FD, 4 },
	{ "WH_EXPORT_DMA_BUF", WH_EXPORT_DMA_BUF, 8 },
	{ "WH_EXPORT_FABRIC", WH_EXPORT_FABRIC, 16 },
	{ "WH_EXPORT_MEMFD", WH_EXPORT_MEMFD, 32 },
	{ "WH_PINNED_NOT", WH_PINNED_NOT, 0 },
	{ "WH_PINNED_WHERRY", WH_PINNED_WHERRY, 1 },
	{ "WH_PINNED_APPLICATION", WH_PINNED_APPLICATION, 2 },
	{ "WH_ACCESS_READ", WH_ACCESS_READ, 1 },
	{ "WH_ACCESS_WRITE", WH_ACCESS_WRITE, 2 },
	{ "WH_ACCESS_NONE", WH_ACCESS_NONE, 4 },
	{ "WH_READ", WH_READ, 1 },
	{ "WH_WRITE", WH_WRITE, 2 },
	{ "WH_PRIORITY_BULK", WH_PRIORITY_BULK, 0 },
	{ "WH_PRIORITY_LATENCY", WH_PRIORITY_LATENCY, 1 },
	{ "WH_KEY_MAX", WH_KEY_MAX, 128 },
	{ "WH_NOTIFICATION_MAX", WH_NOTIFICATION_MAX, 4096 },
	{ "WH_WINDOW_STAGED", WH_WINDOW_STAGED, 0 },
	{ "WH_WINDOW_WC", WH_WINDOW_WC, 1 },
	{ "WH_WINDOW_CACHED", WH_WINDOW_CACHED, 2 },
	{ "WH_WINDOW_DEVICE", WH_WINDOW_DEVICE, 3 },
	{ "WH_LATENCY_BUCKETS", WH_LATENCY_BUCKETS, 28 },
	{ "WH_TRANSPORTS_MAX", WH_TRANSPORTS_MAX, 8 },
	{ "LOCAL_SEGMENT", LOCAL_SEGMENT, 0 },
	{ "INVALID_BATCH", INVALID_BATCH, UINT64_MAX },
	{ "OPCODE_READ", OPCODE_READ, 0 },
	{ "OPCODE_WRITE", OPCODE_WRITE, 1 },
	{ "STATUS_WAITING", STATUS_WAITING, 0 },
	{ "STATUS_PENDING", STATUS_PENDING, 1 },
	{ "STATUS_INVALID", STATUS_INVALID, 2 },
	{ "STATUS_CANCELED", STATUS_CANCELED, 3 },
	{ "STATUS_COMPLETED", STATUS_COMPLETED, 4 },
	{ "STATUS_TIMEOUT", STATUS_TIMEOUT, 5 },
	{ "STATUS_FAILED", STATUS_FAILED, 6 },
};

static void compare(const struct row *rows, size_t count)
{
	int wrong = 0;

	for (size_t i = 0; i < count; i++) {
		if (rows[i].got == rows[i].pinned)
			continue;
		print_error("%s is %zu, was %zu\n", rows[i].what, rows[i].got, rows[i].pinned);
		wrong++;
	}
	assert_int_equal(wrong, 0);
}

static void layout__structs(void **state)
{
	(void)state;
	if (sizeof(void *) != 8)
		skip();
	compare(structs, sizeof(structs) / sizeof(structs[0]));
}

static void layout__constants(void **state)
{
	(void)state;
	assert_true(WH_FOREVER == INT64_MAX);
	compare(constants, sizeof(constants) / sizeof(constants[0]));
}

/* The library that runs is the one whose headers these are. */
static void layout__version(void **state)
{
	char version[32];

	(void)state;
	snprintf(version, sizeof(version), "%d.%d.%d", WH_VERSION_MAJOR, WH_VERSION_MINOR,
		 WH_VERSION_PATCH);
	assert_string_equal(wh_version(), version);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(layout__structs),
		cmocka_unit_test(layout__constants),
		cmocka_unit_test(layout__version),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
