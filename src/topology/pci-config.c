/* SPDX-License-Identifier: Apache-2.0 */
/* Capabilities in a PCI device's configuration space, found in bytes that the caller has read. */
#include "topology/pci-config.h"

#include <errno.h>
#include <stdbool.h>

#define STATUS_LIST 0x10 /* in the status register: there is a list of capabilities */

static unsigned read_u16(const uint8_t *at)
{
	return at[0] | (unsigned)at[1] << 8;
}

size_t wh_pci_capability(const uint8_t *config, size_t size, unsigned id)
{
	size_t at;

	if (size < 0x40 || !(read_u16(config + 6) & STATUS_LIST))
		return 0;
	at = config[0x34] & 0xfc;
	/* The bound ends a list that loops. */
	for (int i = 0; i < 48 && at >= 0x40 && at + 2 <= size && at < 0x100; i++) {
		if (config[at] == id)
			return at;
		at = config[at + 1] & 0xfc;
	}
	return 0;
}

size_t wh_pci_extended(const uint8_t *config, size_t size, unsigned id)
{
	size_t at = 0x100;

	for (int i = 0; i < 960 && at >= 0x100 && at + 4 <= size; i++) {
		unsigned found = read_u16(config + at), next = read_u16(config + at + 2) >> 4;

		if (found == id && next != 0xfff)
			return at;
		at = next & 0xffc;
	}
	return 0;
}

/* A device that has fallen off the bus reads as all ones. */
static bool device_is_gone(const uint8_t *config, size_t size)
{
	return size >= 4 && read_u16(config) == 0xffff && read_u16(config + 2) == 0xffff;
}

int wh_pci_redirects(const uint8_t *config, size_t size)
{
	size_t at = wh_pci_extended(config, size, WH_PCI_ACS);

	if (size <= 0x100 || device_is_gone(config, size))
		return -ENODATA;
	if (!at)
		return 0;
	if (at + 8 > size)
		return -ENODATA;
	/* Requests and completions, bits 2 and 3 of the control register. */
	return !!(read_u16(config + at + 6) & 0x0c);
}

int wh_pci_relaxed(const uint8_t *config, size_t size)
{
	size_t at = wh_pci_capability(config, size, WH_PCI_EXPRESS);

	if (!at || at + 10 > size || device_is_gone(config, size))
		return -ENODATA;
	return !!(read_u16(config + at + 8) & 0x10);
}
