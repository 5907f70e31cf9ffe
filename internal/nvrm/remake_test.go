package nvrm

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// making is a resource manager that also makes objects, and notes what.
type making struct {
	fake
	said   []string
	answer uint32
}

func (m *making) allocate(client uint32, o FabricObject) (uint32, error) {
	return m.make(client, o, fmt.Sprintf("allocate %x of %x over %x, %d bytes by %d", o.Handle-firstObject, o.Parent, o.Memory-firstObject, o.Size, o.PageSize))
}

func (m *making) duplicate(client uint32, o FabricObject) (uint32, error) {
	return m.make(client, o, fmt.Sprintf("duplicate %x of %x for %x", o.Handle-firstObject, o.Source-firstObject, o.Parent))
}

func (m *making) make(client uint32, o FabricObject, what string) (uint32, error) {
	if client != m.client {
		return statusInvalidClient, nil
	}
	m.said = append(m.said, what)
	if m.answer == statusOK {
		m.objects[o.Handle-firstObject] = fakeObject{class: classFabric}
	}
	return m.answer, nil
}

const (
	subdeviceA, subdeviceB = 0x5c000003, 0x5c00000c
	newClient              = firstClient + 0xdf
	large                  = 512 << 20
)

// peers is what two GPUs with peer access and 512 MiB on each have: as traced.
func peers(t *testing.T) []FabricObject {
	t.Helper()
	before := &fake{client: firstClient + 0x30, objects: map[uint32]fakeObject{
		0xa6: {class: classGPUMemory, size: large}, 0xa7: {class: classFabric, parent: subdeviceA, size: large},
		0x145: {class: classGPUMemory, size: large}, 0x146: {class: classFabric, parent: subdeviceB, size: large},
		0x148: {class: classP2P},
		0x149: {class: classFabric, parent: subdeviceB, size: large, dupOf: 0xa7},
		0x14d: {class: classFabric, parent: subdeviceA, size: large, dupOf: 0x146},
	}}
	found, err := scan(before, before.client)
	if err != nil {
		t.Fatal(err)
	}
	return found.fabric
}

func remaker(t *testing.T, m *making) *Remaker {
	t.Helper()
	r := NewRemaker(1, peers(t))
	r.open = func(_, number int) (maker, func(), error) {
		if number != 11 {
			t.Errorf("opened %d", number)
		}
		return m, func() {}, nil
	}
	return r
}

func TestRemakerMakesWhatAMappingMisses(t *testing.T) {
	m := &making{fake: fake{client: newClient, objects: map[uint32]fakeObject{0xa6: {class: classGPUMemory}, 0x145: {class: classGPUMemory}}}}
	r := remaker(t, m)
	for _, memory := range []uint32{0x1d, 0x14d, 0x14d, 0x145} { // one of the driver's own, a duplicate, again, memory
		if err := r.BeforeMapping(Mapping{ControlFD: 11, Client: newClient, Memory: firstObject + memory}); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		fmt.Sprintf("allocate 146 of %x over 145, 536870912 bytes by 0", subdeviceB),
		fmt.Sprintf("duplicate 14d of 146 for %x", subdeviceA),
	}
	if diff := cmp.Diff(want, m.said); diff != "" {
		t.Error(diff)
	}
	m.said = nil
	if err := r.Finish(); err != nil {
		t.Fatal(err)
	}
	want = []string{
		fmt.Sprintf("allocate a7 of %x over a6, 536870912 bytes by 0", subdeviceA),
		fmt.Sprintf("duplicate 149 of a7 for %x", subdeviceB),
	}
	if diff := cmp.Diff(want, m.said); diff != "" {
		t.Error("at the end", diff)
	}
}

func TestRemakerLeavesADriverAloneThatForgetsNothing(t *testing.T) {
	m := &making{fake: fake{client: newClient, objects: map[uint32]fakeObject{}}}
	for _, o := range peers(t) {
		m.objects[o.Handle-firstObject] = fakeObject{class: classFabric}
	}
	r := remaker(t, m)
	err := r.BeforeMapping(Mapping{ControlFD: 11, Client: newClient, Memory: firstObject + 0x149})
	if err == nil {
		err = r.Finish()
	}
	if err != nil || len(m.said) > 0 {
		t.Error(m.said, err)
	}
}

func TestRemakerSaysWhatCannotBeMade(t *testing.T) {
	m := &making{fake: fake{client: newClient, objects: map[uint32]fakeObject{}}, answer: 0x1a}
	if err := remaker(t, m).BeforeMapping(Mapping{ControlFD: 11, Client: newClient, Memory: firstObject + 0x149}); err == nil {
		t.Error("no error")
	}
	if err := remaker(t, m).Finish(); err == nil {
		t.Error("no error although no client is known")
	}
}

func TestMemoryOfFabricIsTheHandleBefore(t *testing.T) {
	objects := peers(t)
	i := slices.IndexFunc(objects, func(o FabricObject) bool { return o.Handle == firstObject+0xa7 })
	if i < 0 || objects[i].Memory != firstObject+0xa6 || objects[i].Source != 0 || objects[i].Parent != subdeviceA {
		t.Errorf("%+v", objects)
	}
}

func TestParseMapping(t *testing.T) {
	got := ParseMapping([MappingSize]byte{11, 0, 0, 0, 0xdf, 0x00, 0xd0, 0xc1, 0x4d, 0x01, 0x00, 0x5c})
	if want := (Mapping{ControlFD: 11, Client: 0xc1d000df, Memory: 0x5c00014d}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
