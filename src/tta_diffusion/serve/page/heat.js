// The colour of a time: blue (settled), through green and yellow, to red (free to change).
export function heat(time, strength = 1) {
  const u = Math.min(1, Math.max(0, time));
  const hue = u < 0.5 ? 250 - 320 * u : 90 - 110 * (u - 0.5);
  const shade = strength === 1 ? 1 : strength * (0.35 + 0.65 * u); // what is settled fades
  return `oklch(0.72 0.14 ${hue.toFixed(0)} / ${shade.toFixed(3)})`;
}
