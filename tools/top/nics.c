/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NICs, from sysfs. State, rate and counters are read for each sample. Which NICs there are takes a
 * walk over the PCI tree, so it is read again only when a name appears or goes in /sys/class.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "top/nics.h"

/* ---- counters -------------------------------------------------------------------------------- */

/* Drivers have different names for the counters of an RDMA port: the first row counts whose files
 * all exist. */
struct names {
	const char *folder; /* of the port */
	const char *file[2]; /* added up */
	unsigned unit;
};
#define NAMES_MOST 6

static const struct names sent[NAMES_MOST] = {
	{ "counters", { "port_xmit_data" }, 4 }, /* words of four bytes */
	{ "hw_counters", { "tx_bytes" }, 1 }, /* bnxt_re, efa */
};

static const struct names received[NAMES_MOST] = {
	{ "counters", { "port_rcv_data" }, 4 },
	{ "hw_counters", { "rx_bytes" }, 1 },
};

static const struct names errors[NAMES_MOST] = {
	{ "counters", { "port_rcv_errors", "port_xmit_discards" }, 1 },
	{ "hw_counters", { "rx_roce_errors", "rx_roce_discards" }, 1 }, /* bnxt_re */
	{ "hw_counters", { "rx_drops" }, 1 }, /* efa */
};

/* Packets sent again; where a driver does not count these, the events that cause them. */
static const struct names retransmits[NAMES_MOST] = {
	{ "hw_counters", { "packet_seq_err", "local_ack_timeout_err" }, 1 }, /* mlx5 */
	{ "hw_counters", { "seq_err_naks_rcvd", "to_retransmits" }, 1 }, /* bnxt_re */
	/* efa, of newer kernels */
	{ "hw_counters", { "retrans_pkts" }, 1 },
	{ "hw_counters", { "completer_retry_err" }, 1 }, /* rxe */
	{ "hw_counters", { "tcpRetransSegs" }, 1 }, /* irdma, of iWARP */
	{ "hw_counters", { "ip4RetransSegs", "ip6RetransSegs" }, 1 }, /* cxgb4, of iWARP */
};

static uint8_t errno_byte(int error)
{
	return error < -255 ? EIO : (uint8_t)-error;
}

/* Read a counter; WH_UNKNOWN: *reason has the errno, unless it had one before. */
static uint64_t counter_read(const struct wh_tree *tree, const char *folder, const char *name,
			     uint8_t *reason)
{
	int64_t value;
	int error = wh_tree_number(tree, folder, name, &value);

	if (!error && value < 0)
		error = -ENODATA;
	if (error && !*reason)
		*reason = errno_byte(error);
	return error ? WH_UNKNOWN : (uint64_t)value;
}

static uint64_t counter_sum(uint64_t one, uint64_t other)
{
	return one == WH_UNKNOWN || other == WH_UNKNOWN ? WH_UNKNOWN : one + other;
}

static uint64_t port_counter(const struct wh_tree *tree, const char *nic, const struct names *names,
			     uint8_t *reason)
{
	*reason = 0;
	for (size_t i = 0; i < NAMES_MOST && names[i].folder; i++) {
		char folder[WH_TREE_PATH];
		uint8_t missing = 0;
		uint64_t value;

		snprintf(folder, sizeof(folder), "/sys/class/infiniband/%s/ports/1/%s", nic,
			 names[i].folder);
		value = counter_read(tree, folder, names[i].file[0], &missing);
		if (names[i].file[1] && value != WH_UNKNOWN)
			value = counter_sum(value,
					    counter_read(tree, folder, names[i].file[1], &missing));
		if (value != WH_UNKNOWN) {
			*reason = 0;
			return value * names[i].unit;
		}
		/* Any other error says more than a missing file. */
		if (!*reason || *reason == ENOENT)
			*reason = missing;
	}
	return WH_UNKNOWN;
}

static void nic_read_counters(const struct wh_tree *tree, struct top_nic *nic)
{
	struct top_nic_why *reasons = &nic->why;
	char folder[WH_TREE_PATH];

	if (nic->rdma) {
		nic->sent_bytes = port_counter(tree, nic->name, sent, &reasons->sent);
		nic->received_bytes = port_counter(tree, nic->name, received, &reasons->received);
		nic->error_count = port_counter(tree, nic->name, errors, &reasons->errors);
		nic->retransmit_count =
			port_counter(tree, nic->name, retransmits, &reasons->retransmits);
		return;
	}
	reasons->sent = reasons->received = reasons->errors = 0;
	snprintf(folder, sizeof(folder), "/sys/class/net/%s/statistics", nic->name);
	nic->sent_bytes = counter_read(tree, folder, "tx_bytes", &reasons->sent);
	nic->received_bytes = counter_read(tree, folder, "rx_bytes", &reasons->received);
	nic->error_count = counter_sum(
		counter_sum(counter_read(tree, folder, "rx_errors", &reasons->errors),
			    counter_read(tree, folder, "tx_errors", &reasons->errors)),
		counter_sum(counter_read(tree, folder, "rx_dropped", &reasons->errors),
			    counter_read(tree, folder, "tx_dropped", &reasons->errors)));
	nic->retransmit_count = WH_UNKNOWN;
	reasons->retransmits = EOPNOTSUPP;
}

/* Read unknown values again, for the errno. */
static void nic_explain(const struct wh_tree *tree, struct top_nic *nic)
{
	char folder[WH_TREE_PATH], line[64];
	int error;

	snprintf(folder, sizeof(folder),
		 nic->rdma ? "/sys/class/infiniband/%s/ports/1" : "/sys/class/net/%s", nic->name);
	nic->why.state = nic->why.most = 0;
	if (!*nic->state) {
		error = wh_tree_line(tree, folder, nic->rdma ? "state" : "operstate", line,
				     sizeof(line));
		nic->why.state = error ? errno_byte(error) : ENODATA;
	}
	if (isnan(nic->most)) {
		/* A virtual interface, or one that is down, gives EINVAL or -1. */
		error = wh_tree_line(tree, folder, nic->rdma ? "rate" : "speed", line,
				     sizeof(line));
		nic->why.most = error ? errno_byte(error) : ENODATA;
	}
}

/* TCP's RetransSegs in /proc/net/snmp: a line of names, and a line of numbers. */
static uint64_t tcp_retransmits(const struct wh_tree *tree)
{
	char text[8192], *names, *values, *name, *value;

	if (wh_tree_read(tree, "/proc/net/snmp", text, sizeof(text)) < 0)
		return WH_UNKNOWN;
	names = strstr(text, "\nTcp: ");
	values = names ? strstr(names + 1, "\nTcp: ") : NULL;
	if (!values)
		return WH_UNKNOWN;
	names++;
	*values++ = '\0';
	values[strcspn(values, "\n")] = '\0';
	while ((name = strsep(&names, " ")) && (value = strsep(&values, " ")))
		if (strcmp(name, "RetransSegs") == 0)
			return strtoull(value, NULL, 10);
	return WH_UNKNOWN;
}

/* ---- which NICs ------------------------------------------------------------------------- */

/* FNV-1a hash of all names with their NULs; not 0. */
static uint64_t names_hash(const struct wh_tree *tree)
{
	static const char *const folders[] = { "/sys/class/infiniband", "/sys/class/net" };
	uint64_t value = UINT64_C(14695981039346656037);

	for (size_t i = 0; i < 2; i++) {
		struct wh_tree_names names;

		wh_tree_list(tree, folders[i], &names);
		for (size_t k = 0; k < names.count; k++) {
			const char *c = names.name[k];

			do
				value = (value ^ (unsigned char)*c) * UINT64_C(1099511628211);
			while (*c++);
		}
		wh_tree_names_free(&names);
		value = (value ^ '/') * UINT64_C(1099511628211);
	}
	return value ? value : 1;
}

/* A NIC of the topology, with its counters of before if it was there. */
static struct top_nic nic_find(const struct top_nic *before, size_t count, const struct wh_nic *nic)
{
	struct top_nic fresh = { .rdma = nic->rdma == 1,
				 .sent_bytes = WH_UNKNOWN,
				 .received_bytes = WH_UNKNOWN,
				 .error_count = WH_UNKNOWN,
				 .retransmit_count = WH_UNKNOWN };

	for (size_t i = 0; i < count; i++)
		if (before[i].rdma == fresh.rdma && strcmp(before[i].name, nic->name) == 0)
			fresh = before[i];
	memcpy(fresh.name, nic->name, sizeof(fresh.name));
	memcpy(fresh.netdev, nic->netdev, sizeof(fresh.netdev));
	return fresh;
}

static void nics_list(const struct wh_tree *tree, struct top_sample *out)
{
	struct top_nic before[TOP_NICS];
	struct wh_topology *topology;
	size_t count = out->nic_count;

	if (wh_topology_read(tree, &topology))
		return;
	memcpy(before, out->nics, count * sizeof(before[0]));
	snprintf(out->host, sizeof(out->host), "%s", topology->host);
	out->nic_count = 0;
	for (size_t i = 0; i < topology->nic_count && out->nic_count < TOP_NICS; i++)
		out->nics[out->nic_count++] = nic_find(before, count, &topology->nics[i]);
	wh_topology_free(topology);
}

int top_nic_up(const struct top_nic *nic)
{
	/* "unknown": some virtual interfaces; "NOP": a port that has not reported yet. */
	if (!*nic->state || strcmp(nic->state, "unknown") == 0 || strcmp(nic->state, "NOP") == 0)
		return -1;
	return strcmp(nic->state, "ACTIVE") == 0 || strcmp(nic->state, "up") == 0;
}

/* ---- samples --------------------------------------------------------------------------------- */

static void nic_read(const struct wh_tree *tree, struct top_nic *nic, double seconds)
{
	struct wh_nic now = { .rdma = nic->rdma };
	struct top_nic before = *nic;

	memcpy(now.name, nic->name, sizeof(now.name));
	wh_nic_read(tree, &now);
	memcpy(nic->state, now.state, sizeof(nic->state));
	nic->most = now.rate / 8;
	nic_explain(tree, nic);
	nic_read_counters(tree, nic);
	nic->sent = top_rate(before.sent_bytes, nic->sent_bytes, seconds) / 1e9;
	nic->received = top_rate(before.received_bytes, nic->received_bytes, seconds) / 1e9;
	nic->errors = top_rate(before.error_count, nic->error_count, seconds);
	nic->retransmits = top_rate(before.retransmit_count, nic->retransmit_count, seconds);
}

void top_read_nics(struct top_nics *nics, const struct wh_tree *tree, double seconds,
		   struct top_sample *out)
{
	uint64_t again = tcp_retransmits(tree), listed = names_hash(tree);

	if (!nics->listed)
		out->tcp_retransmit_count = WH_UNKNOWN;
	out->tcp_retransmits = top_rate(out->tcp_retransmit_count, again, seconds);
	out->tcp_retransmit_count = again;
	if (listed != nics->listed)
		nics_list(tree, out);
	nics->listed = listed;
	for (size_t i = 0; i < out->nic_count; i++)
		nic_read(tree, &out->nics[i], seconds);
}
