/* SPDX-License-Identifier: Apache-2.0 */
/* NICs in samples of wherry top, on a tree that changes between two samples. */
#include "../../tools/top/nics.c"

#include "unit.h"

#include <sys/stat.h>
#include <unistd.h>

#include <ftw.h>

struct machine {
	char root[64];
	struct wh_tree tree;
	struct top_nics nics;
	struct top_sample *sample;
};

__attribute__((format(printf, 3, 4))) static void put(const struct machine *m, const char *text,
						      const char *format, ...)
{
	char path[512], full[600];
	va_list list;
	FILE *file;

	va_start(list, format);
	vsnprintf(path, sizeof(path), format, list);
	va_end(list);
	snprintf(full, sizeof(full), "%s%s", m->root, path);
	for (char *at = full + strlen(m->root) + 1; (at = strchr(at, '/')); at++) {
		*at = '\0';
		mkdir(full, 0777);
		*at = '/';
	}
	file = fopen(full, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void count(const struct machine *m, const char *nic, const char *file, unsigned value)
{
	char text[16];

	snprintf(text, sizeof(text), "%u\n", value);
	put(m, text, "/sys/class/infiniband/%s/ports/1/%s", nic, file);
}

static void machine_open(struct machine *m)
{
	*m = (struct machine){ .root = "/tmp/tools-nics.XXXXXX",
			       .sample = calloc(1, sizeof(*m->sample)) };
	assert_non_null(m->sample);
	assert_non_null(mkdtemp(m->root));
	m->tree.root = m->root;
	put(m, "4: ACTIVE\n", "/sys/class/infiniband/mlx5_0/ports/1/state");
	put(m, "400 Gb/sec (4X NDR)\n", "/sys/class/infiniband/mlx5_0/ports/1/rate");
}

static int forget(const char *path, const struct stat *status, int type, struct FTW *walk)
{
	(void)status, (void)type, (void)walk;
	return remove(path);
}

static void take_away(const struct machine *m, const char *path)
{
	char full[600];

	snprintf(full, sizeof(full), "%s%s", m->root, path);
	assert_int_equal(nftw(full, forget, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static void machine_close(struct machine *m)
{
	take_away(m, "");
	free(m->sample);
}

static const struct top_nic *take(struct machine *m)
{
	top_read_nics(&m->nics, &m->tree, m->nics.listed ? 0.5 : 0, m->sample);
	return m->sample->nics;
}

/* ---- state ----------------------------------------------------------------------------------- */

static void state__is_read_each_time(void **state)
{
	static const struct {
		const char *text, *state;
		int up;
	} rows[] = {
		{ "1: DOWN\n", "DOWN", 0 },
		{ "2: INIT\n", "INIT", 0 },
		{ "4: ACTIVE\n", "ACTIVE", 1 },
		{ "0: NOP\n", "NOP", -1 },
		{ "\n", "", -1 },
		{ "4: ACTIVE\n", "ACTIVE", 1 },
	};
	const struct top_nic *nic;
	struct machine m;

	(void)state;
	machine_open(&m);
	nic = take(&m);
	assert_int_equal(m.sample->nic_count, 1);
	assert_true(nic->rdma && strcmp(nic->state, "ACTIVE") == 0 && nic->most == 50);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		put(&m, rows[i].text, "/sys/class/infiniband/mlx5_0/ports/1/state");
		nic = take(&m);
		assert_string_equal(nic->state, rows[i].state);
		assert_int_equal(top_nic_up(nic), rows[i].up);
	}
	put(&m, "100 Gb/sec (4X EDR)\n", "/sys/class/infiniband/mlx5_0/ports/1/rate");
	assert_true(take(&m)->most == 12.5);
	/* A port that does not say anything any more. */
	take_away(&m, "/sys/class/infiniband/mlx5_0/ports");
	nic = take(&m);
	assert_true(isnan(nic->most) && !*nic->state && top_nic_up(nic) == -1);
	machine_close(&m);
}

static void state__of_interfaces(void **state)
{
	static const struct {
		const char *state;
		int up;
	} rows[] = { { "up", 1 },      { "down", 0 },     { "lowerlayerdown", 0 },
		     { "dormant", 0 }, { "unknown", -1 }, { "", -1 } };

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct top_nic nic = { .name = "eth0" };

		snprintf(nic.state, sizeof(nic.state), "%s", rows[i].state);
		assert_int_equal(top_nic_up(&nic), rows[i].up);
	}
}

static void list__they_come_and_go(void **state)
{
	const struct top_nic *nics;
	struct machine m;

	(void)state;
	machine_open(&m);
	count(&m, "mlx5_0", "counters/port_xmit_data", 0);
	take(&m);
	put(&m, "1: DOWN\n", "/sys/class/infiniband/bnxt_re0/ports/1/state");
	count(&m, "mlx5_0", "counters/port_xmit_data", 125000000);
	nics = take(&m);
	assert_int_equal(m.sample->nic_count, 2);
	assert_string_equal(nics[0].name, "bnxt_re0");
	assert_string_equal(nics[0].state, "DOWN");
	/* The other one's rate goes on. */
	assert_string_equal(nics[1].name, "mlx5_0");
	assert_true(nics[1].sent == 1 && isnan(nics[0].sent));
	take_away(&m, "/sys/class/infiniband/bnxt_re0");
	count(&m, "mlx5_0", "counters/port_xmit_data", 250000000);
	nics = take(&m);
	assert_int_equal(m.sample->nic_count, 1);
	assert_true(strcmp(nics[0].name, "mlx5_0") == 0 && nics[0].sent == 1);
	take_away(&m, "/sys/class/infiniband/mlx5_0");
	take(&m);
	assert_int_equal(m.sample->nic_count, 0);
	machine_close(&m);
}

/* ---- counters -------------------------------------------------------------------------------- */

/* By the names that drivers of Linux give them. */
static void counters__of_several_drivers(void **state)
{
	static const struct {
		const char *one, *other;
	} again[] = {
		{ "hw_counters/packet_seq_err", "hw_counters/local_ack_timeout_err" },
		{ "hw_counters/seq_err_naks_rcvd", "hw_counters/to_retransmits" },
		{ "hw_counters/retrans_pkts", NULL },
		{ "hw_counters/completer_retry_err", NULL },
		{ "hw_counters/tcpRetransSegs", NULL },
		{ "hw_counters/ip4RetransSegs", "hw_counters/ip6RetransSegs" },
	}, wrong[] = {
		{ "counters/port_rcv_errors", "counters/port_xmit_discards" },
		{ "hw_counters/rx_roce_errors", "hw_counters/rx_roce_discards" },
		{ "hw_counters/rx_drops", NULL },
	};
	struct machine m;

	(void)state;
	for (size_t i = 0; i < sizeof(again) / sizeof(again[0]); i++) {
		size_t k = i % (sizeof(wrong) / sizeof(wrong[0]));
		const struct top_nic *nic;

		machine_open(&m);
		nic = take(&m);
		assert_true(isnan(nic->retransmits) && nic->retransmit_count == WH_UNKNOWN);
		assert_true(isnan(nic->errors) && nic->error_count == WH_UNKNOWN);
		count(&m, "mlx5_0", again[i].one, 7);
		/* One of two is not all. */
		if (again[i].other)
			assert_true(take(&m)->retransmit_count == WH_UNKNOWN);
		if (again[i].other)
			count(&m, "mlx5_0", again[i].other, 5);
		count(&m, "mlx5_0", wrong[k].one, 2);
		if (wrong[k].other)
			count(&m, "mlx5_0", wrong[k].other, 3);
		nic = take(&m);
		assert_int_equal(nic->retransmit_count, again[i].other ? 12 : 7);
		assert_int_equal(nic->error_count, wrong[k].other ? 5 : 2);
		count(&m, "mlx5_0", again[i].one, 17);
		count(&m, "mlx5_0", wrong[k].one, 4);
		nic = take(&m);
		assert_true(nic->retransmits == 20 && nic->errors == 4);
		machine_close(&m);
	}
}

static void counters__of_bytes(void **state)
{
	struct machine m;

	(void)state;
	machine_open(&m);
	count(&m, "mlx5_0", "hw_counters/tx_bytes", 1000);
	assert_int_equal(take(&m)->sent_bytes, 1000);
	/* The port's own come first, and are words. */
	count(&m, "mlx5_0", "counters/port_xmit_data", 1000);
	count(&m, "mlx5_0", "counters/port_rcv_data", 500);
	assert_int_equal(take(&m)->sent_bytes, 4000);
	assert_int_equal(m.sample->nics[0].received_bytes, 2000);
	machine_close(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(state__is_read_each_time),
		cmocka_unit_test(state__of_interfaces),
		cmocka_unit_test(list__they_come_and_go),
		cmocka_unit_test(counters__of_several_drivers),
		cmocka_unit_test(counters__of_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
