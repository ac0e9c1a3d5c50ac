/* SPDX-License-Identifier: Apache-2.0 */
/* The frames of the transport rdma; the first byte says which. */
#include "fuzz.h"

#include <errno.h>

#include "wire/bytes.h"
#include "wire/wire.h"

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
	check(wh_rdma_connected_encode(bytes, &connected) == size && !memcmp(bytes, data, size));
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
		check(keyed.count && keyed.count <= WH_RDMA_KEYS_MAX && keyed.way <= WH_RDMA_PEERMEM);
		for (uint32_t i = 0; i < keyed.count; i++)
			check(wh_get64(keyed.keys + (size_t)i * WH_RDMA_KEY_SIZE));
	}
	check(wh_rdma_keyed_encode(bytes, &keyed) == size && !memcmp(bytes, data, size));
}

static void try_flushed(const uint8_t *data, size_t size)
{
	uint8_t bytes[WH_RDMA_FLUSHED_MAX];
	struct wh_rdma_flushed flushed;

	if (wh_rdma_flushed_decode(data, size, &flushed))
		return;
	check(flushed.error <= 0 && flushed.error >= -4095);
	check(strnlen(flushed.text, sizeof(flushed.text)) < sizeof(flushed.text));
	check(wh_rdma_flushed_encode(bytes, &flushed) == size && !memcmp(bytes, data, size));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!size)
		return 0;
	if (data[0] % 4 == 0)
		try_connect(data + 1, size - 1);
	else if (data[0] % 4 == 1)
		try_connected(data + 1, size - 1);
	else if (data[0] % 4 == 2)
		try_keyed(data + 1, size - 1);
	else
		try_flushed(data + 1, size - 1);
	return 0;
}
