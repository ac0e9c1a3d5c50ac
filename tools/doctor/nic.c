/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of RDMA NICs, their ports, and GPU memory that they are to reach. The table at the end
 * lists them; doctor/check.c walks over ports and NICs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/doctor.h"

#define GIDS 256 /* entries of a port's GID table that are read, at most */

/* ---- ports ----------------------------------------------------------------------------------- */

/* The network interface of a port, for the text of a command. */
static const char *port_interface(const struct nic_port *port)
{
	return *port->netdev ? port->netdev : "IFACE";
}

/* "ACTIVE"; "400 Gbit/s". */
static void port_state(const struct doctor *doctor, const struct nic_port *port, char state[64],
		       char rate[64])
{
	char text[64], *end;
	const char *colon;
	double value;

	if (wh_tree_line(&doctor->tree, port->folder, "state", text, sizeof(text)))
		*text = '\0';
	colon = strstr(text, ": ");
	snprintf(state, 64, "%s", colon ? colon + 2 : text);
	if (wh_tree_line(&doctor->tree, port->folder, "rate", text, sizeof(text)))
		*text = '\0';
	value = strtod(text, &end);
	if (end > text && value > 0)
		snprintf(rate, 64, "%.4g Gbit/s", value);
	else
		snprintf(rate, 64, "rate unknown");
}

static void nic_port(const struct doctor *doctor, const struct nic_port *port,
		     struct finding *finding)
{
	char state[64], rate[64];

	port_state(doctor, port, state, rate);
	if (!*state) {
		finding_add(finding, UNKNOWN, "%s: state unknown", port->name);
	} else if (strcmp(state, "ACTIVE") == 0) {
		finding_add(finding, PASS, "%s: active, %s", port->name, rate);
	} else {
		finding_add(finding, WARN, "%s: %s", port->name, state);
		finding_advise(finding,
			       "check the cable and the switch port; ip link set %s up; InfiniBand "
			       "needs a "
			       "subnet manager",
			       port_interface(port));
	}
}

/* One port that is down is a warning; no port that is up is a failure. */
static void nic_port_end(const struct doctor *doctor, struct finding *finding)
{
	(void)doctor;
	if (!finding->passed && finding->verdict == WARN)
		finding_add(finding, FAIL, "no port is active");
}

static void nic_mtu(const struct doctor *doctor, const struct nic_port *port,
		    struct finding *finding)
{
	const struct verbs_fact *verbs = doctor_verbs(doctor, port->nic->name);
	int at = port->number - 1, mtu = -1, most = -1;

	if (verbs && verbs->late) {
		finding_add(finding, UNKNOWN, "%s: no answer in time", port->name);
		return;
	}
	if (verbs && at >= 0 && at < FACTS_PORTS) {
		mtu = verbs->mtu[at];
		most = verbs->mtu_most[at];
	}
	if (mtu < 0 || most < 0) {
		finding_add(finding, UNKNOWN, "%s: libibverbs does not report the MTU", port->name);
	} else if (mtu < most) {
		finding_add(finding, WARN, "%s: %d bytes; the port supports %d", port->name, mtu,
			    most);
		finding_advise(finding,
			       "RoCE: ip link set %s mtu 4200, or 9000, on all hosts and switches; "
			       "InfiniBand: the subnet manager's partition",
			       port_interface(port));
	} else {
		finding_add(finding, PASS, "%s: %d bytes", port->name, mtu);
	}
}

/* An entry that is not in use reads as zeros behind its prefix. */
static bool gid_is_used(const char *gid)
{
	return strspn(gid, "0:") != strlen(gid);
}

/* The index of a GID for RoCE v2, preferably one made of an IPv4 address, and the GID; -1: the port
 * has none. *error: -errno if its GID table cannot be read, else 0. */
static int gid_choose(const struct doctor *doctor, const struct nic_port *port, char gid[64],
		      int *error)
{
	static const char mapped_ipv4[] = "0000:0000:0000:0000:0000:ffff:"; /* ::ffff:a.b.c.d */
	char folder[WH_TREE_PATH], type[32], text[64], number[16];
	int chosen = -1;

	*error = 0;
	for (int i = 0; i < GIDS; i++) {
		bool ipv4;
		int missing;

		snprintf(folder, sizeof(folder), "%s/gid_attrs/types", port->folder);
		snprintf(number, sizeof(number), "%d", i);
		missing = wh_tree_line(&doctor->tree, folder, number, type, sizeof(type));
		/* The type of an entry that is not in use reads as EINVAL. */
		if (missing == -ENOENT || missing == -ENOTDIR || missing == -EACCES) {
			if (!i)
				*error = missing;
			break;
		}
		if (missing || strcmp(type, "RoCE v2") != 0)
			continue;
		snprintf(folder, sizeof(folder), "%s/gids", port->folder);
		if (wh_tree_line(&doctor->tree, folder, number, text, sizeof(text)) ||
		    !gid_is_used(text))
			continue;
		ipv4 = strncmp(text, mapped_ipv4, strlen(mapped_ipv4)) == 0;
		if (chosen < 0 || ipv4) {
			chosen = i;
			memcpy(gid, text, 64);
		}
		if (ipv4)
			break;
	}
	return chosen;
}

static void nic_gid(const struct doctor *doctor, const struct nic_port *port,
		    struct finding *finding)
{
	char gid[64] = "";
	int error, index = gid_choose(doctor, port, gid, &error);

	if (error) {
		finding_add(finding, UNKNOWN, "%s: cannot read the GID table: %s", port->name,
			    strerror(-error));
	} else if (index < 0) {
		finding_add(finding, FAIL, "%s: no GID for RoCE v2", port->name);
		finding_advise(finding,
			       "assign an IP address to %s; gid_attrs/types then lists RoCE v2",
			       port_interface(port));
	} else {
		finding_add(finding, PASS, "%s: index %d (%s)", port->name, index, gid);
	}
}

/* ---- loss ------------------------------------------------------------------------------------ */

/* Is any of the flags 0 to count-1 in a folder set? 1, 0, or -1: the folder has none of them. */
static int flow_flags(const struct doctor *doctor, const char *folder, int count)
{
	int result = -1;

	for (int i = 0; i < count; i++) {
		char number[16];
		int64_t value;

		snprintf(number, sizeof(number), "%d", i);
		if (wh_tree_number(&doctor->tree, folder, number, &value))
			continue;
		if (value)
			return 1;
		result = 0;
	}
	return result;
}

static void nic_flow(const struct doctor *doctor, const struct nic_port *port,
		     struct finding *finding)
{
	char folder[WH_TREE_PATH], pfc[64];
	int ecn, error;

	snprintf(folder, sizeof(folder), "/sys/class/net/%s/ecn/roce_np/enable", port->netdev);
	ecn = flow_flags(doctor, folder, 8);
	snprintf(folder, sizeof(folder), "/sys/class/net/%s/qos", port->netdev);
	error = wh_tree_line(&doctor->tree, folder, "pfc", pfc, sizeof(pfc));
	if (ecn < 0 && error) {
		finding_add(finding, UNKNOWN, "%s: the driver does not show PFC and ECN in sysfs",
			    port->name);
		finding_advise(finding, "mlnx_qos -i %s and dcb pfc show dev %s show them",
			       port_interface(port), port_interface(port));
	} else if (ecn == 1 || (!error && strspn(pfc, "0, ") != strlen(pfc))) {
		finding_add(finding, PASS, "%s: ECN %s, PFC %s", port->name,
			    ecn == 1 ? "on" : "off", error ? "-" : pfc);
	} else {
		finding_add(finding, WARN,
			    "%s: neither ECN nor PFC is enabled: RoCE loses packets under load",
			    port->name);
		finding_advise(
			finding,
			"mlnx_qos -i %s --pfc 0,0,0,1,0,0,0,0 --trust dscp, and the same on the "
			"switch",
			port_interface(port));
	}
}

/* Names by which drivers of the kernel count packets that were lost or came twice: mlx5, bnxt_re,
 * irdma (retransmits, before and since Linux 6.17), efa, mlx4, rxe. Some count for the device
 * instead of for each port. */
static const char *const lost[] = {
	"out_of_sequence",
	"packet_seq_err",
	"local_ack_timeout_err",
	"rnr_nak_retry_err",
	"roce_adp_retrans",
	"rx_icrc_encapsulated",
	"to_retransmits",
	"seq_err_naks_rcvd",
	"max_retry_exceeded",
	"oos_drop_count",
	"rx_roce_discards",
	"tcpRetransSegs",
	"RetransSegs",
	"rx_drops",
	"retrans_pkts",
	"retrans_timeout_events",
	"rq_num_oos",
	"sq_num_oos",
	"sq_num_to",
	"out_of_seq_request",
	"rcvd_seq_err",
	"retry_exceeded_err",
};
static const char *const congested[] = { "np_cnp_sent", "rp_cnp_handled", "tx_cnp_pkts",
					 "rx_cnp_pkts", "cnpSent",        "cnpHandled" };

/* Report the counters of both lists in a folder. How many of them it has. */
static size_t counters_in(const struct doctor *doctor, const char *folder, const char *name,
			  struct finding *finding)
{
	size_t known = 0;
	int64_t value;

	for (size_t i = 0; i < sizeof(lost) / sizeof(lost[0]); i++) {
		if (wh_tree_number(&doctor->tree, folder, lost[i], &value))
			continue;
		known++;
		if (value <= 0)
			continue;
		finding_add(finding, WARN, "%s: %s %lld", name, lost[i], (long long)value);
		finding_advise(finding,
			       "packets were lost since the driver was loaded: see whether the "
			       "counter still grows; check PFC and ECN along the path, and cables");
	}
	for (size_t i = 0; i < sizeof(congested) / sizeof(congested[0]); i++) {
		if (wh_tree_number(&doctor->tree, folder, congested[i], &value))
			continue;
		known++;
		if (value > 0)
			finding_add(finding, INFO, "%s: %s %lld: there was congestion", name,
				    congested[i], (long long)value);
	}
	return known;
}

static void nic_counters(const struct doctor *doctor, const struct nic_port *port,
			 struct finding *finding)
{
	char folder[WH_TREE_PATH];
	size_t known;

	snprintf(folder, sizeof(folder), "%s/hw_counters", port->folder);
	known = counters_in(doctor, folder, port->name, finding);
	snprintf(folder, sizeof(folder), "/sys/class/infiniband/%s/hw_counters", port->nic->name);
	if (port->first)
		known += counters_in(doctor, folder, port->nic->name, finding);
	if (known)
		finding_add(finding, PASS, "%s: no packets lost", port->name);
	else
		finding_add(finding, UNKNOWN, "%s: no known hw_counters", port->name);
}

/* ---- GPU memory ------------------------------------------------------------------------------ */

static void nic_dmabuf(const struct doctor *doctor, const struct wh_nic *nic,
		       struct finding *finding)
{
	const struct verbs_fact *verbs = doctor_verbs(doctor, nic->name);

	if (verbs && verbs->late) {
		finding_add(finding, UNKNOWN, "%s: no answer in time", nic->name);
	} else if (!verbs || verbs->dma_buf < 0) {
		finding_add(finding, UNKNOWN, "%s: %s", nic->name,
			    !doctor->verbs.known ? "libibverbs did not answer" :
			    *doctor->verbs.why   ? doctor->verbs.why :
						   "ibv_reg_dmabuf_mr() cannot be tried");
		finding_advise(finding, "install rdma-core 34 or later (libibverbs.so.1)");
	} else if (verbs->dma_buf == EBADF) {
		finding_add(finding, PASS, "%s: supports dma-buf registration", nic->name);
	} else {
		const struct registration *known = doctor_registration(verbs->dma_buf);

		finding_add(finding, WARN, "%s: no dma-buf registration: %s", nic->name,
			    strerror(verbs->dma_buf));
		if (known)
			finding_advise(finding, "%s", known->fix);
	}
}

/* Neither dma-buf nor nvidia-peermem registers the GPU's memory: report the step that failed. */
static void gpu_refused(const char *nic, const struct gpu_fact *gpu, struct finding *finding)
{
	const struct registration *known = doctor_registration(gpu->registered);

	if (gpu->exported < 0 || (!gpu->exported && gpu->registered < 0)) {
		finding_add(finding, UNKNOWN, "%s with %s: could not be tried", gpu->address, nic);
	} else if (gpu->exported) {
		finding_add(finding, FAIL, "%s exports no dma-buf: %s", gpu->address,
			    strerror(gpu->exported));
		finding_advise(finding,
			       "open NVIDIA kernel modules: see driver.flavour and gpu.direct");
	} else {
		finding_add(finding, FAIL, "%s cannot register the memory of %s: %s%s%s", nic,
			    gpu->address, strerror(gpu->registered), known ? ": " : "",
			    known ? known->means : "");
		if (known)
			finding_advise(finding, "%s", known->fix);
	}
}

static void gpu_moved(const char *nic, const struct gpu_fact *gpu, struct finding *finding)
{
	bool dma_buf = !gpu->exported && !gpu->registered;

	if (gpu->late) {
		finding_add(finding, UNKNOWN, "%s with %s: not tried, out of time", gpu->address,
			    nic);
	} else if (!dma_buf && gpu->peermem) {
		gpu_refused(nic, gpu, finding);
	} else if (gpu->moved > 0) {
		finding_add(finding, FAIL,
			    "%s registers the memory of %s, but transfers fail: %s: %s", nic,
			    gpu->address, strerror(gpu->moved), gpu->why);
		finding_advise(
			finding,
			"check PCIe between them: see pci.acs and pci.iommu; dmesg shows faults");
	} else if (gpu->moved < 0 && *gpu->why) {
		finding_add(
			finding, WARN,
			"%s registers the memory of %s, but cannot even transfer host memory: %s",
			nic, gpu->address, gpu->why);
		finding_advise(finding, "see nic.port, nic.gid and limit.memlock");
	} else {
		finding_add(finding, PASS, "%s %s the memory of %s (%s)", nic,
			    gpu->moved ? "registers" : "writes and reads", gpu->address,
			    dma_buf ? "dma-buf" : "peermem");
	}
}

static void nic_gpu(const struct doctor *doctor, struct finding *finding)
{
	size_t tried = 0;

	for (int i = 0; i < doctor->verbs.count; i++) {
		const struct verbs_fact *nic = &doctor->verbs.nics[i];

		for (int k = 0; k < nic->gpu_count; k++, tried++)
			gpu_moved(nic->name, &nic->gpus[k], finding);
		if (nic->late)
			finding_add(finding, UNKNOWN, "%s: no answer in time", nic->name);
		tried += nic->late;
	}
	if (doctor->verbs.cuda_late)
		finding_add(finding, UNKNOWN,
			    "no pair of GPU and NIC could be tried: CUDA did not start in time");
	else if (!tried)
		finding_add(finding, UNKNOWN, "no pair of GPU and NIC could be tried%s%s",
			    *doctor->verbs.why ? ": " : "", doctor->verbs.why);
}

static void nic_peermem(const struct doctor *doctor, struct finding *finding)
{
	int module = wh_tree_exists(&doctor->tree, "/sys/module/nvidia_peermem"),
	    memory_peers = wh_tree_exists(&doctor->tree, "/sys/kernel/mm/memory_peers");
	bool dma_buf = false, registered = false, late = doctor->verbs.cuda_late;

	for (int i = 0; i < doctor->verbs.count; i++) {
		const struct verbs_fact *nic = &doctor->verbs.nics[i];

		dma_buf |= nic->dma_buf == EBADF;
		late |= nic->late;
		for (int k = 0; k < nic->gpu_count; k++) {
			registered |= !nic->gpus[k].peermem;
			late |= nic->gpus[k].late && nic->gpus[k].peermem < 0;
			if (!nic->gpus[k].peermem)
				finding_add(finding, PASS, "%s registers addresses of %s",
					    nic->name, nic->gpus[k].address);
		}
	}
	if (registered)
		return;
	if (!module || !memory_peers) {
		finding_add(finding, PASS, "%s is present",
			    !module ? "nvidia-peermem" : "/sys/kernel/mm/memory_peers");
	} else if (module != -ENOENT) {
		finding_add(finding, UNKNOWN, "/sys/module/nvidia_peermem: %s", strerror(-module));
	} else if (dma_buf) {
		finding_add(finding, INFO, "not loaded, and not needed: NICs register dma-bufs");
	} else if (late) {
		finding_add(finding, UNKNOWN, "not loaded; not all NICs and GPUs answered in time");
	} else {
		finding_add(
			finding, WARN,
			"neither nvidia-peermem nor dma-buf registration: NICs cannot reach GPU "
			"memory");
		finding_advise(finding,
			       "modprobe nvidia-peermem, or use a NIC driver with dma-buf");
	}
}

static void nic_files(const struct doctor *doctor, struct finding *finding)
{
	struct wh_tree_names names;
	size_t devices = 0;
	int error = wh_tree_list(&doctor->tree, "/dev/infiniband", &names);

	for (size_t i = 0; i < names.count; i++) {
		char path[WH_TREE_PATH];
		int refused;

		if (strncmp(names.name[i], "uverbs", 6) != 0)
			continue;
		devices++;
		snprintf(path, sizeof(path), "/dev/infiniband/%.64s", names.name[i]);
		refused = wh_tree_open(&doctor->tree, path, true);
		finding_add(finding,
			    !refused                                ? PASS :
			    refused == -EACCES || refused == -EPERM ? FAIL :
								      UNKNOWN,
			    "%s: %s", path, refused ? strerror(-refused) : "opens");
		if (refused)
			finding_advise(
				finding,
				"add the user to the group of %s, or the device to the container",
				path);
	}
	wh_tree_names_free(&names);
	if (error && error != -ENOENT) {
		finding_add(finding, UNKNOWN, "/dev/infiniband: %s", strerror(-error));
	} else if (!devices) {
		finding_add(finding, FAIL, "an RDMA NIC, but no /dev/infiniband/uverbs*");
		finding_advise(finding,
			       "modprobe ib_uverbs; docker run --device=/dev/infiniband; a pod: "
			       "resources: {limits: {rdma/hca: 1}}, or as the RDMA device plugin "
			       "of the cluster names it");
	}
}

const struct check doctor_nic_checks[] = {
	{ .id = "nic.port",
	  .title = "ports of RDMA NICs are active",
	  .needs = NEEDS_SYSFS,
	  .subjects = NICS,
	  .port = nic_port,
	  .end = nic_port_end },
	{ .id = "nic.mtu",
	  .title = "the MTU in use is the largest that the port supports",
	  .needs = NEEDS_SYSFS | NEEDS_VERBS,
	  .subjects = NICS,
	  .port = nic_mtu },
	{ .id = "nic.gid",
	  .title = "ports have a GID for RoCE v2",
	  .needs = NEEDS_SYSFS,
	  .subjects = NICS,
	  .port = nic_gid,
	  .not_roce = "needs no RoCE v2 GID" },
	{ .id = "nic.flow",
	  .title = "PFC or ECN is enabled",
	  .needs = NEEDS_SYSFS,
	  .subjects = NICS,
	  .port = nic_flow,
	  .not_roce = "has its own flow control" },
	{ .id = "nic.counters",
	  .title = "NICs count no lost packets",
	  .needs = NEEDS_SYSFS,
	  .subjects = NICS,
	  .port = nic_counters },
	{ .id = "nic.files",
	  .title = "device files of NICs can be opened",
	  .needs = NEEDS_SYSFS,
	  .subjects = NICS,
	  .machine = nic_files },
	{ .id = "nic.dmabuf",
	  .title = "NICs register dma-bufs",
	  .needs = NEEDS_SYSFS | NEEDS_VERBS,
	  .subjects = NICS,
	  .nic = nic_dmabuf },
	{ .id = "nic.gpu",
	  .title = "each NIC registers, writes and reads GPU memory",
	  .needs = NEEDS_NVML | NEEDS_MOVE,
	  .subjects = NICS | GPUS,
	  .machine = nic_gpu },
	{ .id = "nic.peermem",
	  .title = "nvidia-peermem is loaded where NICs need it",
	  .needs = NEEDS_NVML | NEEDS_MEMORY,
	  .subjects = NICS | GPUS,
	  .machine = nic_peermem },
	{ 0 },
};
