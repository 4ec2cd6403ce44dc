// Calculate ranges and overlaps of IP networks.
// Usage: subnet_calc CIDR|ADDRESS ...   (for example subnet_calc 10.0.0.0/22 10.0.2.0/24 10.0.2.7)
package main

import (
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"strings"
)

// last returns the highest address of a block by setting every host bit.
func last(block netip.Prefix) netip.Addr {
	bytes := block.Addr().AsSlice()
	for bit := block.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	address, _ := netip.AddrFromSlice(bytes)
	return address
}

func mask(block netip.Prefix) string {
	full := netip.MustParseAddr("255.255.255.255")
	network, _ := full.Prefix(block.Bits())
	return network.Addr().String()
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "subnet_calc: expected a network or an address\nusage: subnet_calc CIDR|ADDRESS ...")
		os.Exit(2)
	}
	var blocks []netip.Prefix
	var addresses []netip.Addr
	for _, arg := range os.Args[1:] {
		if !strings.Contains(arg, "/") {
			address, err := netip.ParseAddr(arg)
			if err != nil {
				fmt.Fprintf(os.Stderr, "subnet_calc: %q is not an IP address\n", arg)
				os.Exit(2)
			}
			addresses = append(addresses, address)
			continue
		}
		block, err := netip.ParsePrefix(arg)
		if err != nil {
			fmt.Fprintf(os.Stderr, "subnet_calc: %q is not a network such as 10.0.0.0/8\n", arg)
			os.Exit(2)
		}
		if block != block.Masked() {
			fmt.Printf("%s has host bits set; the network is %s\n", arg, block.Masked())
		}
		blocks = append(blocks, block.Masked())
	}
	for _, block := range blocks {
		host := block.Addr().BitLen() - block.Bits()
		size := new(big.Int).Lsh(big.NewInt(1), uint(host))
		fmt.Printf("%s: %s to %s, %s addresses", block, block.Addr(), last(block), size)
		if block.Addr().Is4() {
			usable := size
			// The first and the last address are reserved, except in the smallest blocks.
			if host >= 2 {
				usable = new(big.Int).Sub(size, big.NewInt(2))
			}
			fmt.Printf(", %s usable hosts, netmask %s", usable, mask(block))
		}
		fmt.Println()
	}
	for i, a := range blocks {
		for _, b := range blocks[i+1:] {
			switch {
			case a == b:
				fmt.Printf("%s is listed twice\n", a)
			case a.Overlaps(b) && a.Bits() < b.Bits():
				fmt.Printf("%s contains %s\n", a, b)
			case a.Overlaps(b):
				fmt.Printf("%s contains %s\n", b, a)
			}
		}
	}
	for _, address := range addresses {
		var inside []string
		for _, block := range blocks {
			if block.Contains(address.WithZone("")) {
				inside = append(inside, block.String())
			}
		}
		fmt.Printf("%s: private %t, loopback %t, multicast %t, in %s\n", address, address.IsPrivate(), address.IsLoopback(),
			address.IsMulticast(), strings.Join(append(inside, "no listed network")[:max(1, len(inside))], ", "))
	}
}
