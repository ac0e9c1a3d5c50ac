/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Our own declarations of the peer-to-peer interface that the NVIDIA driver offers to other kernel
 * modules: the build needs no source of NVIDIA.
 *
 * The module does not link the functions but looks them up by symbol_get() when it is loaded. It
 * therefore builds without a driver, loads with any, and does not depend on symbol checksums. Since
 * Linux 6.6 (and its backports) symbol_get() finds only functions that are exported to GPL modules;
 * the driver exports these so since version 550. */
#ifndef WHERRY_P2P_H
#define WHERRY_P2P_H

#include <linux/build_bug.h>
#include <linux/types.h>

/* Pages of 4, 64 or 128 KiB; in practice always 64. */
#define P2P_PAGE_SIZE_64KB 1
/* Minor versions only add members. Version 1 (driver 340 to 575) has no flags. */
#define P2P_VERSION_MAJOR(version) ((version) >> 16)
#define P2P_TABLE_CPU_CACHEABLE 1u
/* For nvidia_p2p_get_pages_persistent(): use the PCIe BAR even if the processor has a coherent link
 * to the GPU. */
#define P2P_GET_FORCE_PCIE 1u

struct nvidia_p2p_page {
	u64 physical_address;
	u32 registers[6];
};

struct nvidia_p2p_page_table {
	u32 version;
	u32 page_size;
	struct nvidia_p2p_page **pages;
	u32 entries;
	u8 *gpu_uuid;
	u32 flags;
};

static_assert(sizeof(struct nvidia_p2p_page) == 32);
static_assert(sizeof(struct nvidia_p2p_page_table) == 40);

/* Address and length are multiples of 64 KiB within one allocation of the calling process. May
 * sleep. If the memory is freed before nvidia_p2p_put_pages(), the driver calls revoked(data) once,
 * from within the free and under its locks, and owns the table again. Putting a revoked table does
 * nothing. */
int nvidia_p2p_get_pages(u64 token, u32 va_space, u64 address, u64 length,
			 struct nvidia_p2p_page_table **table, void (*revoked)(void *data),
			 void *data);
int nvidia_p2p_put_pages(u64 token, u32 va_space, u64 address, struct nvidia_p2p_page_table *table);
/* Called by the callback once it no longer needs the table. */
int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *table);

/* Pages that stay when the memory is freed: there is no callback. */
int nvidia_p2p_get_pages_persistent(u64 address, u64 length, struct nvidia_p2p_page_table **table,
				    u32 flags);
int nvidia_p2p_put_pages_persistent(u64 address, struct nvidia_p2p_page_table *table, u32 flags);

#endif
