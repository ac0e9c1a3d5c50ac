/* SPDX-License-Identifier: Apache-2.0 */
/* The frames of the transport rdma; the first byte says which. */
#include "fuzz.h"

#include <errno.h>

#include <wherry/transfer.h>

#include "transport/rdma/wire.h"
#include "wire/bytes.h"

static void check_end(const struct wh_rdma_end *end)
{
	check(end->link == WH_RDMA_INFINIBAND || end->link == WH_RDMA_ETHERNET);
	check((end->link == WH_RDMA_INFINIBAND) == !end->gid_type && end->gid_type <= 2);
	check(end->mtu >= 1 && end->mtu <= 5 && end->qp < 1u << 24 && end->psn < 1u << 24);
	check(strnlen(end->name, sizeof(end->name)) < sizeof(end->name));
}

static void try_connect(const uint8_t *data, size_t size)
{
	uint8_t bytes[WH_RDMA_CONNECT_MAX];
	struct wh_rdma_connect connect = { .number = 7 };

	if (wh_rdma_connect_decode(data, size, &connect)) {
		check(connect.number == 7);
		return;
	}
	check_end(&connect.end);
	check(wh_rdma_connect_encode(bytes, &connect) == size && !memcmp(bytes, data, size));
}

static void try_connected(const uint8_t *data, size_t size)
{
	uint8_t bytes[WH_RDMA_CONNECTED_MAX];
	struct wh_rdma_connected connected;

	if (wh_rdma_connected_decode(data, size, &connected))
		return;
	check(connected.error <= 0 && connected.error >= -4095);
	check(strnlen(connected.text, sizeof(connected.text)) < sizeof(connected.text));
	if (!connected.error)
		check_end(&connected.end);
	check_reencoded(bytes, wh_rdma_connected_encode(bytes, &connected), connected.text, data,
			size);
}

static void try_keyed(const uint8_t *data, size_t size)
{
	static uint8_t bytes[WH_FRAME_MAX];
	struct wh_rdma_keyed keyed;

	if (size > sizeof(bytes) || wh_rdma_keyed_decode(data, size, &keyed))
		return;
	check(keyed.error <= 0 && keyed.error >= -4095);
	check(strnlen(keyed.text, sizeof(keyed.text)) < sizeof(keyed.text));
	if (!keyed.error) {
		check(keyed.count && keyed.count <= WH_RDMA_KEYS_MAX &&
		      keyed.method <= WH_RDMA_STAGED);
		check((keyed.method == WH_RDMA_STAGED) == (keyed.bounce != 0));
		check(keyed.bounce < WH_RDMA_BOUNCES && (!keyed.bounce || keyed.address));
		for (uint32_t i = 0; i < keyed.count; i++)
			check(wh_get64(keyed.keys + (size_t)i * WH_RDMA_KEY_SIZE));
	}
	check_reencoded(bytes, wh_rdma_keyed_encode(bytes, &keyed), keyed.text, data, size);
}

static void try_flushed(const uint8_t *data, size_t size)
{
	uint8_t bytes[WH_RDMA_FLUSHED_MAX];
	struct wh_rdma_flushed flushed;

	if (wh_rdma_flushed_decode(data, size, &flushed))
		return;
	check(flushed.error <= 0 && flushed.error >= -4095);
	check(strnlen(flushed.text, sizeof(flushed.text)) < sizeof(flushed.text));
	check_reencoded(bytes, wh_rdma_flushed_encode(bytes, &flushed), flushed.text, data, size);
}

static void try_bounce_opened(const uint8_t *data, size_t size)
{
	uint8_t bytes[WH_RDMA_BOUNCE_OPENED_MAX];
	struct wh_rdma_bounce_opened opened;

	if (wh_rdma_bounce_opened_decode(data, size, &opened))
		return;
	check(opened.error <= 0 && opened.error >= -4095);
	check(strnlen(opened.text, sizeof(opened.text)) < sizeof(opened.text));
	if (!opened.error) {
		check(opened.address && opened.slots && opened.slots <= WH_RDMA_BOUNCE_SLOTS);
		check(opened.address + opened.slots * (uint64_t)WH_RDMA_BOUNCE_SLOT >
		      opened.address);
	}
	check_reencoded(bytes, wh_rdma_bounce_opened_encode(bytes, &opened), opened.text, data,
			size);
}

static void try_copy(const uint8_t *data, size_t size)
{
	uint8_t bytes[WH_RDMA_COPY_HEAD];
	struct wh_extent_reader reader;
	struct wh_extent extent;
	struct wh_rdma_copy copy;

	if (wh_rdma_copy_decode(data, size, &copy))
		return;
	check(copy.slot < WH_RDMA_SLOTS && (copy.op == WH_READ || copy.op == WH_WRITE));
	check(copy.length && copy.extents + copy.length == data + size);
	check(wh_rdma_copy_encode(bytes, copy.slot, copy.op) == bytes + sizeof(bytes));
	check(!memcmp(bytes, data, sizeof(bytes)));
	wh_extents_open(&reader, copy.extents, copy.length);
	for (unsigned i = 0; i < WH_RDMA_COPY_EXTENTS && wh_extents_next(&reader, &extent) == 1;
	     i++)
		check(extent.length && extent.offset + extent.length >= extent.length);
}

static void try_ring_opened(const uint8_t *data, size_t size)
{
	uint8_t bytes[WH_RDMA_RING_OPENED_MAX];
	struct wh_rdma_ring_opened opened;

	if (wh_rdma_ring_opened_decode(data, size, &opened))
		return;
	check(opened.error <= 0 && opened.error >= -4095);
	check(strnlen(opened.text, sizeof(opened.text)) < sizeof(opened.text));
	if (!opened.error) {
		check(opened.address && opened.count && opened.count <= WH_RDMA_RING_KEYS);
		check(opened.address + (uint64_t)WH_RDMA_RING_SLOTS * WH_RDMA_RING_SLOT >
		      opened.address);
	}
	check_reencoded(bytes, wh_rdma_ring_opened_encode(bytes, &opened), opened.text, data, size);
}

/* An immediate, and what is in the slot. */
static void try_notification(const uint8_t *data, size_t size)
{
	uint8_t bytes[WH_RDMA_NOTIFICATION_HEAD];
	struct wh_rdma_notification notification;
	uint32_t imm;

	if (size < 4 + sizeof(bytes))
		return;
	imm = wh_get32(data);
	check(wh_rdma_imm_slot(imm) < (int)WH_RDMA_RING_SLOTS);
	if (wh_rdma_notification_decode(data + 4, imm, &notification))
		return;
	check(wh_rdma_imm_slot(imm) >= 0 && notification.length <= WH_RDMA_NOTIFICATION_MAX);
	check(wh_rdma_imm((uint32_t)wh_rdma_imm_slot(imm), notification.sequence) == imm);
	wh_rdma_notification_encode(bytes, &notification);
	check(!memcmp(bytes, data + 4, sizeof(bytes)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const tries[])(const uint8_t *,
				     size_t) = { try_connect,     try_connected,     try_keyed,
						 try_flushed,     try_bounce_opened, try_copy,
						 try_ring_opened, try_notification };

	if (size)
		tries[data[0] % (sizeof(tries) / sizeof(tries[0]))](data + 1, size - 1);
	return 0;
}
