/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The structs and constants of the drop-in for Mooncake's transfer engine are those of Mooncake's
 * own header, which its programs were compiled against. compare.sh holds Wherry's own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <transfer_engine_c.h>
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
	{ "LOCAL_SEGMENT", LOCAL_SEGMENT, 0 },       { "INVALID_BATCH", INVALID_BATCH, UINT64_MAX },
	{ "OPCODE_READ", OPCODE_READ, 0 },           { "OPCODE_WRITE", OPCODE_WRITE, 1 },
	{ "STATUS_WAITING", STATUS_WAITING, 0 },     { "STATUS_PENDING", STATUS_PENDING, 1 },
	{ "STATUS_INVALID", STATUS_INVALID, 2 },     { "STATUS_CANCELED", STATUS_CANCELED, 3 },
	{ "STATUS_COMPLETED", STATUS_COMPLETED, 4 }, { "STATUS_TIMEOUT", STATUS_TIMEOUT, 5 },
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
